# Who may sign what this node runs, so that a change of keys travels as a release: one that is signed by a key that counts
# already. A file that is not given is left as it is. Its settings are those of class pulley, which includes it.
#
# @api private
class pulley::signers {
  $files = {
    'allowed_signers' => $pulley::allowed_signers,
    'revoked_signers' => $pulley::revoked_signers,
  }

  $files.filter |$_name, $text| { $text =~ NotUndef }.each |$name, $text| {
    file { "/etc/pulley/${name}":
      ensure  => file,
      owner   => 'root',
      group   => 'root',
      mode    => '0644',
      content => regsubst($text, '([^\n])\z', "\\1\n"),
    }
  }
}

# A value that reports must not show, and one that the node computes.
class profile::secret (Sensitive[String] $password) {
  file { '/etc/secret.profile': content => $password, show_diff => false, mode => '0600' }
  file { '/etc/rewrapped.profile': content => Sensitive("p=${password.unwrap}") }
  notify { 'deferred': message => Deferred('profile::shout', ['computed on the node']) }
}

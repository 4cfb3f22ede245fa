# The SSH host keys of the nodes that this node sees, as a whole file.
# A key is of the node's name, and of its address if `pulley serve` saw the node use it: a machine must not speak for another one.
# It needs `sees:` for the node's role, and `exports: [ssh.ed25519.key]` below `hosts:` in the environment file: docs/hosts.md
# of Pulley.
#
# @param path   the file
# @param hosts  nodes by role
class profile::known_hosts (
  Pattern[/\A\//]           $path  = '/etc/ssh/ssh_known_hosts',
  Hash[String, Array[Hash]] $hosts = lookup('pulley::hosts'),
) {
  $lines = $hosts.map |$role, $nodes| {
    $nodes.map |$h| {
      $address = $h['checked'] ? { true => [$h['address']], default => [] }
      $names = ([regsubst($h['name'], '_', '-', 'G'), $h['name']] + $address).unique.join(',')
      $key = get($h, 'facts', {})['ssh.ed25519.key']
      case $key { # a machine chose it
        /\A[A-Za-z0-9+\/]+=*\z/: { "${names} ssh-ed25519 ${key}\n" }
        default:                 { '' }
      }
    }
  }

  file { $path:
    ensure  => file,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => $lines.flatten.join,
  }
}

# The names of the nodes that this node sees, as a marked block of /etc/hosts. All other lines stay.
# It needs `sees:` for the node's role in the environment file: docs/hosts.md of Pulley.
#
# @param path   the file
# @param hosts  nodes by role
class profile::hosts_file (
  Pattern[/\A\//]           $path  = '/etc/hosts',
  Hash[String, Array[Hash]] $hosts = lookup('pulley::hosts'),
) {
  $lines = $hosts.map |$role, $nodes| {
    $nodes.filter |$h| { $h['address'] }.map |$h| {
      $names = [regsubst($h['name'], '_', '-', 'G'), $h['name']].unique # hostname and name
      "${h['address']} ${names.join(' ')}\n"
    }
  }

  file { $path:
    ensure  => file,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => pulley::block($path, 'nodes', $lines.flatten.join),
  }
}

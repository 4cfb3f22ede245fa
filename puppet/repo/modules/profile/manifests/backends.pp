# The nodes of one role as the backends of HAProxy, as a whole file. Include the file in the configuration of HAProxy, and let
# the service subscribe to it. It needs `sees:` for the node's role in the environment file: docs/hosts.md of Pulley.
#
# @param role   the role of the backends
# @param port   their port
# @param path   the file
# @param hosts  nodes by role
class profile::backends (
  String[1]                 $role,
  Integer[1, 65535]         $port  = 443,
  Pattern[/\A\//]           $path  = '/etc/haproxy/backends.cfg',
  Hash[String, Array[Hash]] $hosts = lookup('pulley::hosts'),
) {
  unless $role in $hosts {
    fail("this node does not see role ${role}: add the role to sees: of this node's role in the environment file")
  }
  $servers = $hosts[$role].filter |$h| { $h['address'] }.map |$h| {
    $address = $h['address'] ? {
      /:/     => "[${h['address']}]",
      default => $h['address'],
    }
    "  server ${h['name']} ${address}:${port} check\n"
  }

  file { $path:
    ensure  => file,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => "backend ${role}\n${servers.join}",
  }
}

# What every node has: the agent's schedule, and a greeting that shows which data reached it.
#
# @param message  one line for people who log in
# @param notes    further lines
class profile::base (
  String[1]        $message,
  Array[String[1]] $notes = [],
) {
  include pulley

  file { '/etc/pulley-demo':
    ensure => directory,
    owner  => 'root',
    group  => 'root',
    mode   => '0755',
  }

  file { '/etc/pulley-demo/motd':
    ensure  => file,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => ([$message] + $notes).reduce('') |$text, $line| { "${text}${line}\n" },
  }
}

# The file that makes cron start the agent. Its settings are those of class pulley, which includes it.
#
# @api private
class pulley::cron {
  # All output goes to syslog. If logger is missing or ends, cat reads the rest: a closed pipe would end the agent during a
  # run. pipefail keeps the agent's exit code for cron's own log, and needs bash.
  $line = "${pulley::schedule} root set -o pipefail; ${pulley::command} 2>&1 | (logger -t ${pulley::log_tag} || cat)"

  $content = @("CRON")
    # Kept by Puppet (module pulley): change its parameters, not this file.
    SHELL=/bin/bash
    PATH=${pulley::path}
    ${line}
    | CRON

  $present = $pulley::ensure ? {
    'absent' => 'absent',
    default  => 'file',
  }

  # Not a package resource: the catalog would not compile where another class declares the same package, and a machine with another
  # cron (systemd-cron, cronie, bcron) would lose it. Each has crontab.
  $install = $facts['os']['family'] ? {
    'Debian' => 'apt-get -qy -o DPkg::Lock::Timeout=300 install cron || { apt-get -qy update && apt-get -qy -o DPkg::Lock::Timeout=300 install cron; }',
    'RedHat' => '{ dnf -qy install cronie || yum -qy install cronie; } && { [ ! -d /run/systemd/system ] || systemctl enable --now crond; }',
    default  => undef,
  }

  if $pulley::manage_package and $pulley::ensure == 'present' and $install =~ NotUndef {
    exec { 'install cron for pulley-agent':
      command     => $install,
      environment => 'DEBIAN_FRONTEND=noninteractive',
      unless      => 'command -v crontab',
      provider    => 'shell',
      timeout     => 1800, # another apt-get may hold the lock, or a mirror be slow
      path        => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'],
      before      => File['/etc/cron.d/pulley-agent'],
    }
  }

  # cron ignores files that others may write, and those whose name has a dot.
  file { '/etc/cron.d/pulley-agent':
    ensure  => $present,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => $content,
  }
}

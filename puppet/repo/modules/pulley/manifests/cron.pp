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

  $package = $facts['os']['family'] ? {
    'Debian' => 'cron',
    'RedHat' => 'cronie',
    default  => undef,
  }

  if $pulley::manage_package and $pulley::ensure == 'present' and $package =~ NotUndef {
    package { $package:
      ensure => installed,
      before => File['/etc/cron.d/pulley-agent'],
      notify => Exec['start cron after its installation'],
    }

    # Not a service resource: cron may run under something other than systemd, which then starts it.
    exec { 'start cron after its installation':
      command     => "systemctl enable --now ${package ? { 'cronie' => 'crond', default => $package }}",
      onlyif      => 'test -d /run/systemd/system',
      path        => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'],
      refreshonly => true,
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

# Keeps the agent running: its schedule in cron and, if given, the keys that may sign releases and data.
#
# @param ensure          present, or absent where something else starts the agent (such as `pulley-agent daemon`)
# @param schedule        five fields of cron with values in their ranges, or a name such as @hourly; not @reboot
# @param command         command of the schedule, without line breaks and %, which cron reads as a line break
# @param path            PATH of the run: cron's own lacks /usr/local/bin and /opt/puppetlabs/bin
# @param log_tag         the name under which the run's output goes to syslog
# @param manage_package  install cron where the machine's image lacks it (families Debian and RedHat)
# @param allowed_signers complete text of /etc/pulley/allowed_signers, see ssh-keygen(1); undef leaves the file as it is
# @param revoked_signers complete text of /etc/pulley/revoked_signers, one public key per line; undef leaves the file as it is
class pulley (
  Enum['present', 'absent']              $ensure          = 'present',
  String[1]                              $schedule        = '*/5 * * * *',
  Pattern[/\A[^\n\r%]+\z/]              $command         = '/usr/local/bin/pulley-agent run --splay',
  Pattern[/\A[^\n\r"]+\z/]              $path            = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin',
  Pattern[/\A[A-Za-z0-9._-]+\z/]        $log_tag         = 'pulley-agent',
  Boolean                                $manage_package  = true,
  Optional[Pattern[/^[^#\s]/]]           $allowed_signers = undef,
  Optional[String]                       $revoked_signers = undef,
) {
  unless pulley::valid_schedule($schedule) {
    fail("pulley::schedule ${schedule}: cron would not start the agent; write it like '*/5 * * * *', or @hourly")
  }
  contain pulley::cron
  contain pulley::signers
}

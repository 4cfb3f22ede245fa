# What every node has.
class profile::base (
  String $greeting,
  Optional[String] $level = undef,
  Profile::Mode $mode = '0644',
) {
  file { '/etc/motd.profile':
    content => epp('profile/motd.epp', { 'greeting' => $greeting, 'level' => $level }),
    mode    => $mode,
  }
  file { '/etc/profile.erb': content => template('profile/facts.erb') }
  file { '/opt/profile':
    ensure  => directory,
    recurse => true,
    source  => 'puppet:///modules/profile/tree',
  }
  $packages = lookup('profile::packages', Array[String], 'unique')
  package { $packages: ensure => present, tag => 'wanted' }
  Package <| tag == 'wanted' |> -> File['/etc/motd.profile']
  notify { "fact ${facts['profile_tier']}, external ${facts['profile_rack']}, at ${domain_of_all}": }
  notify { lookup('profile::literal'): }
  class { 'profile::first': stage => 'first' }
}

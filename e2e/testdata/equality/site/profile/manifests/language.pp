# Functions, a type and data of the module itself.
class profile::language (String $from_module) inherits profile::base {
  File['/etc/motd.profile'] { mode => '0600' }
  notify { profile::whisper('Puppet'): }
  notify { profile::shout('Ruby'): }
  profile_item { 'one': size => 3, kind => $from_module, require => Notify['deferred'] }
  $kinds = { 'a' => [1, 2.5, true, undef], 'b' => { 'c' => /x/, 'd' => default } }
  notify { "values ${kinds.map |$k, $v| { "${k}=${v}" }.join(' ')}": }
  notify { "strict ${'10' * 5} ${[1, 2, 3].filter |$n| { $n > 1 }} ${'x' in 'xyz'}": tag => ['one', 'two'] }
}

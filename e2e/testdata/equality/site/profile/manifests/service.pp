# Defined types, virtual and exported resources, and overrides.
class profile::service (Array[Integer] $ports) {
  $ports.each |Integer $i, Integer $port| {
    profile::port { "port ${port}": number => $port, place => $i }
  }
  @notify { 'virtual': message => 'declared' }
  Notify <| title == 'virtual' |> { message => 'realized', loglevel => 'notice' }
  @@user { 'exported': uid => 3000 }
  User <<| tag == 'nowhere' |>>
  $accounts = { 'profile a' => { 'uid' => 3001 }, 'profile b' => { 'groups' => ['a', 'b'], 'ensure' => 'absent' } }
  create_resources('user', $accounts, { 'shell' => '/bin/false', 'comment' => 'made' })
  ensure_resource_of_profile('tuned')
}

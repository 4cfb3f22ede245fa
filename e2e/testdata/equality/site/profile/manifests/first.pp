# A class in a stage before all others.
class profile::first {
  exec { 'profile first': command => '/bin/true', unless => '/bin/true' }
}

# Users of merged hashes.
class profile::users (Hash[String, Hash] $users = {}) {
  $users.each |$name, $settings| {
    user { $name: * => $settings, managehome => true }
  }
}

# One port.
define profile::port (Integer $number, Integer $place = 0) {
  file { "/etc/ports.d/${number}": content => "${place} ${name} ${title}\n" }
  -> notify { "port of ${caller_module_name}: ${number}": }
  ~> User <| title == 'profile a' |>
}

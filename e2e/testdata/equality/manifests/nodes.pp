node /^(web|db)\d+$/ {
  lookup('classes', Array[String], 'unique').include
  notify { "class of machine: ${1}": }
}

node default {
  include profile::base
  notify { "no node matches ${trusted['certname']}, ${trusted['hostname']}": }
}

# What a controller is made of.
class role::controller {
  include profile::base
}

# What a compute node is made of.
class role::compute {
  include profile::base
}

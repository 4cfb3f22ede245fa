# Which role a node has, by its name. Roles are those of environments/*.yaml; `pulley validate` says when one is missing here.

node /^controller\d+/ {
  include role::controller
}

node /^compute\d+/ {
  include role::compute
}

node default {
  fail("No node declaration in manifests/site.pp matches ${trusted['certname']}: give it a role there")
}

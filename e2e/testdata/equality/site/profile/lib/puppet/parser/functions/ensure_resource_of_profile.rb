Puppet::Parser::Functions.newfunction(:ensure_resource_of_profile) do |args|
  function_create_resources(['notify', { "of Ruby #{args[0]}" => { 'message' => lookupvar('domain_of_all') } }])
end

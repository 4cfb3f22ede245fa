# Puppet reads every manifest of the folder as one, in the order of their names.
$domain_of_all = "${facts['networking']['hostname']}.${environment}.example"
File { owner => 'root', mode => '0640' }
stage { 'first': before => Stage['main'] }

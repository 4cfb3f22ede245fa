$tier = "t-${trusted['extensions']['pp_datacenter']}"
$site_zones = [$trusted['extensions']['pp_zone'], 'all']
node default { include site }

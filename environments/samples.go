package environments

import "embed"

// Samples holds dev.yaml and production.yaml, the environments of a new control repo.
//
//go:embed dev.yaml production.yaml
var Samples embed.FS

// CloudSamples holds clouds/openstack.yaml, the cloud of a new control repo.
//
//go:embed clouds/openstack.yaml
var CloudSamples embed.FS

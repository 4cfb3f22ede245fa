package environments

import "embed"

// Samples holds dev.yaml and production.yaml, the environments of a new control repo.
//
//go:embed dev.yaml production.yaml
var Samples embed.FS

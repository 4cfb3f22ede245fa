package main

import (
	"pulley/agent/stage"
	"pulley/internal/nodeconfig"
	"pulley/internal/trust"
)

// config is the node's configuration, as the verbs use it.
type config struct{ nodeconfig.Config }

// load reads the configuration. A verb that works offline (status, enable, disable) does without.
func (o *options) load() (config, error) {
	c, err := o.Load(o.env)
	return config{c}, err
}

// signers returns the places of this node's lists of signers.
func (c config) signers() trust.Files { return stage.Signers(c.Config) }

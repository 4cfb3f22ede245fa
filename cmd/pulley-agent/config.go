package main

import (
	"pulley/agent/node"
	"pulley/agent/stage"
	"pulley/internal/cli"
	"pulley/internal/nodeconfig"
	"pulley/internal/trust"
)

// config is the node's configuration, as used by the verbs.
type config struct{ nodeconfig.Config }

// load reads the configuration. Verbs that work offline (status, enable, disable) do not need it.
func (o *options) load() (config, error) {
	c, err := o.Load(o.env)
	return config{c}, err
}

// signers returns the places of this node's lists of signers.
func (c config) signers() trust.Files { return stage.Signers(c.Config) }

// setup returns the node's agent with the streams and flags of this command.
func (o *options) setup(c config) node.Setup {
	return node.Setup{
		Config: c.Config, Version: o.env.Version, Now: o.env.Now, Log: o.logger(), Stdout: o.env.Stdout, Stderr: o.env.Stderr,
		Warn: func(err error) { cli.Complain(o.env, program, err) }, Step: o.step,
	}
}

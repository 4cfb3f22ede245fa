package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"

	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/nodeconfig"
	"pulley/internal/takeover"
)

// beside is a first boot on a machine that a puppet agent manages: it gets everything but a schedule, so that the agent stays
// in charge until a person says otherwise. nil where there is no such agent.
type beside struct {
	machine  *takeover.Machine
	schedule string // that was not set up
	user     string
	alone    bool // a person said otherwise: what an earlier start found is forgotten
}

// standBack looks for an agent before the first step does anything: the settings are what tells a first start from those that
// follow, by which time Puppet may be there because of Pulley.
func (b *bootstrap) standBack(ctx context.Context) (*beside, error) {
	m := b.oldAgent(nil)
	s, err := takeover.Load(m.StateDir)
	if err != nil {
		return nil, err
	}
	switch s.Stage {
	case takeover.Disabled, takeover.Removing, takeover.Removed:
		return nil, nil
	case takeover.Found:
		if b.alone {
			return &beside{machine: m, alone: true}, nil
		}
	case takeover.None:
		if b.alone || b.wasNode() {
			return nil, nil
		}
		found, err := m.Look(ctx)
		if err != nil || !found.InCharge() {
			return nil, err
		}
	}
	k := &beside{machine: m, schedule: b.plan.Schedule, user: b.env.User}
	if b.plan.Steps[string(firstboot.Schedule)] != "" {
		k.schedule = ""
	}
	steps := maps.Clone(b.plan.Steps)
	if steps == nil {
		steps = map[string]string{}
	}
	steps[string(firstboot.Schedule)] = firstboot.Off
	b.plan.Steps = steps
	return k, nil
}

// wasNode says whether there are settings that name a fleet.
func (b *bootstrap) wasNode() bool {
	path := first(b.Flags.Path, b.path("etc/pulley/agent.yaml"))
	text, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
	if err != nil {
		return false
	}
	f, err := nodeconfig.ParseFile(path, text)
	return err == nil && f.Environment != ""
}

func (k *beside) remember() error {
	switch {
	case k == nil:
		return nil
	case k.alone:
		return k.machine.Forget()
	}
	return k.machine.Find(k.schedule, k.user)
}

func (k *beside) tell(e cli.Env) {
	if k == nil || k.alone {
		return
	}
	fmt.Fprint(e.Stdout, `puppet agent manages this machine, and goes on to: Pulley has no schedule here yet
next: pulley-agent takeover look     shows what Pulley would change, and changes nothing
      pulley-agent takeover disable  puts Pulley in its place; takeover undo brings all of it back
`)
}

// oldAgent is the machine as a takeover sees it; dirs are Puppet's state folders, nil for where its packagings have them.
func (o *options) oldAgent(dirs []string) *takeover.Machine {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		root = o.Root // whoever works there says what is wrong
	}
	if dirs == nil {
		dirs = puppetStateDirs(root)
	}
	return &takeover.Machine{Root: root, StateDir: nodeconfig.Under(root).StateDir(), StateDirs: dirs, Now: o.env.Now}
}

package steps

import (
	"cmp"
	"context"
	"maps"

	"pulley/agent/nodeconfig"
	"pulley/agent/takeover"
	"pulley/internal/bounded"
	"pulley/internal/firstboot"
	"pulley/internal/puppet"
)

// beside is a first boot on a machine that a puppet agent manages. It does everything except the schedule: the agent
// stays in charge until an operator decides otherwise. nil if there is no such agent.
type beside struct {
	machine  *takeover.Machine
	schedule string // the schedule that was not set up
	user     string
	alone    bool // an operator's flag overrides the finding of an earlier start
}

// standBack looks for a puppet agent before the first step. The settings distinguish the first start from later ones,
// at which Puppet may be installed because of Pulley.
func (b *boot) standBack(ctx context.Context) (*beside, error) {
	m := &takeover.Machine{Root: b.Root, StateDir: b.stateDir(), StateDirs: puppet.DefaultStateDirs(b.Root), Now: b.Env.Now}
	s, err := takeover.Load(m.StateDir)
	if err != nil {
		return nil, err
	}
	switch s.Stage {
	case takeover.Disabled, takeover.Removing, takeover.Removed:
		return nil, nil
	case takeover.Found:
		if b.IgnorePuppetAgent {
			return &beside{machine: m, alone: true}, nil
		}
	case takeover.None:
		if b.IgnorePuppetAgent || b.wasNode() {
			return nil, nil
		}
		found, err := m.Look(ctx)
		if err != nil || !found.InCharge() {
			return nil, err
		}
	}
	k := &beside{machine: m, schedule: b.plan.Schedule, user: b.Env.User}
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

// wasNode reports whether there are settings that name a fleet.
func (b *boot) wasNode() bool {
	path := cmp.Or(b.Path, b.path("etc/pulley/agent.yaml"))
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

// inCharge reports whether the puppet agent stays in charge.
func (k *beside) inCharge() bool { return k != nil && !k.alone }

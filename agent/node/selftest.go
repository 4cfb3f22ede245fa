package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"pulley/agent"
	"pulley/agent/stage"
	"pulley/internal/content"
	"pulley/internal/store"
)

// SelfTest returns why this program cannot be the machine's agent, or nil. It changes nothing.
func (s Setup) SelfTest(ctx context.Context) error {
	for _, part := range []struct {
		name string
		test func(context.Context) error
	}{
		{"read this node's state", s.testState},
		{"read who may sign", func(context.Context) error { _, _, err := stage.Signers(s.Config).Read(); return err }},
		{"open this node's releases", func(context.Context) error { _, err := content.OpenStore(s.StateDir()); return err }},
		{"find Puppet", func(context.Context) error { return s.NewPuppet().Installed() }},
		{"read etcd and write into it", s.testEtcd},
	} {
		if err := part.test(ctx); err != nil {
			return fmt.Errorf("cannot %s: %w", part.name, err)
		}
	}
	return nil
}

// testState reads the state that the agent in place wrote. It fails if the state has a newer format.
func (s Setup) testState(context.Context) error {
	d, err := agent.ReadDisk(s.StateDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = d.Load()
	return errors.Join(err, d.Close())
}

// testEtcd reads the values that a tick reads, and rewrites the node's own status.
func (s Setup) testEtcd(ctx context.Context) error {
	st, err := store.Open(s.Store)
	if err != nil {
		return err
	}
	if _, err = st.Node.Desire(ctx, s.Identity); err == nil {
		err = st.Node.RepeatStatus(ctx, s.Identity)
	}
	return errors.Join(err, st.Close())
}

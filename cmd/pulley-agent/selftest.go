package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/content"
	"pulley/internal/store"
)

func newSelftest(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest",
		Short: "say whether this very program could be this machine's agent",
		Long: `selftest reads what a run reads: the settings, the node's state, the lists of signers and, over the node's own identity,
what etcd wants of it; and writes the node's last status into etcd again, as it is. It starts no Puppet and changes nothing.
The agent that is in place runs it before it lets a newer one do anything.

EXIT STATUS
  0 it could, 1 it could not, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.selftest(c.Context()) },
	}
}

func (o *options) selftest(ctx context.Context) error {
	c, err := o.load()
	if err != nil {
		return err
	}
	if err := o.able(ctx, c); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s: version %s could be its agent\n", c.Identity.Node, o.ownVersion())
	return nil
}

// able says whether this program could be the machine's agent.
func (o *options) able(ctx context.Context, c config) error {
	for _, part := range []struct {
		name string
		test func(context.Context) error
	}{
		{"read this node's state", c.testState},
		{"read who may sign", func(context.Context) error { _, _, err := c.signers().Read(); return err }},
		{"open this node's releases", func(context.Context) error { _, err := content.OpenStore(c.StateDir()); return err }},
		{"find Puppet", func(context.Context) error { return c.newPuppet(o.logger()).Installed() }},
		{"read etcd and write into it", c.testEtcd},
	} {
		if err := part.test(ctx); err != nil {
			return fmt.Errorf("cannot %s: %w", part.name, err)
		}
	}
	return nil
}

// testState reads the state as the agent that wrote it left it: one in a newer format has nothing to fear but this.
func (c config) testState(context.Context) error {
	d, err := agent.ReadDisk(c.StateDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = d.Load()
	return errors.Join(err, d.Close())
}

// testEtcd reads what a tick reads, and writes the node's own status again.
func (c config) testEtcd(ctx context.Context) error {
	s, err := store.Open(c.Store)
	if err != nil {
		return err
	}
	if _, err = s.Desire(ctx, c.Identity); err == nil {
		err = s.Repeat(ctx, c.Identity)
	}
	return errors.Join(err, s.Close())
}

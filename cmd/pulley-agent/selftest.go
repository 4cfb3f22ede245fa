package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func newSelftest(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest",
		Short: "Check whether this program can be this machine's agent",
		Long: `selftest reads everything that a run reads: the settings, the node's state, the lists of signers and, with the node's own
identity, the desired state in etcd. It writes the node's last status into etcd again, unchanged. It starts no Puppet. The agent
in place runs the self-test of a newer agent before that does a tick.

EXIT STATUS
  0 it can, 1 it cannot, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.selftest(c.Context()) },
	}
}

func (o *options) selftest(ctx context.Context) error {
	c, err := o.load()
	if err != nil {
		return err
	}
	if err := o.setup(c).SelfTest(ctx); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s: version %s could be its agent\n", c.Identity.Node, o.setup(c).OwnVersion())
	return nil
}

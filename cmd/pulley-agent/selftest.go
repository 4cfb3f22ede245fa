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
	if err := o.setup(c).SelfTest(ctx); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s: version %s could be its agent\n", c.Identity.Node, o.setup(c).OwnVersion())
	return nil
}

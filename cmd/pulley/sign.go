package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/release/trust"
)

func newSign(o *options) *cobra.Command {
	var off, renew bool
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "sign -e ENVIRONMENT --sign-key FILE",
		Short: "Sign a statement of an environment's targets, or renew it",
		Long: `sign states which targets are in force: of all nodes, and of roles and nodes with their own, at this epoch. The statement
ends as the environment's file says (statement: 24h). A node that verified a statement takes and keeps no other target without
complaint, and needs a valid one from then on. Every change of targets with --sign-key signs a new statement.

--renew is for a task that holds a key, such as a timer or CI: it signs only if the present statement has a valid signature
and names exactly the targets in force. sign refuses targets that are not those of the history.

EXIT STATUS
  0 signed; 1 failed, or not renewed; 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley sign -e production --sign-key ~/.ssh/pulley
  pulley sign -e production --sign-key /etc/pulley/ci --renew --signers allowed_signers`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.sign.key(o.env) == nil {
				return cli.Usagef("give --sign-key FILE")
			}
			if off && renew {
				return cli.Usagef("--off and --renew exclude each other")
			}
			if err := o.sign.check(o.env); err != nil {
				return err
			}
			var signers *trust.Signers
			if renew {
				var err error
				if signers, err = files.read(); err != nil {
					return err
				}
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				st, err := promotion.Sign(ctx, s, ref, off, signers, o.changing())
				if err == nil {
					o.announceStatement(ref, st)
				}
				return err
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.sign.add(cmd)
	files.addSigners(cmd.Flags(), ", with --renew")
	o.addDryRun(cmd)
	files.addRevoked(cmd.Flags(), ", with --renew (default: none is)")
	cmd.Flags().BoolVar(&renew, "renew", false, "only renew the present statement of the same targets")
	cmd.Flags().BoolVar(&off, "off", false, "sign that nodes need no statement any more")
	return cmd
}

// announceStatement prints what was signed.
func (o *options) announceStatement(ref model.Ref, st promotion.Signed) {
	signed := "signed"
	if o.dryRun {
		signed = "would sign"
	}
	if st.Off {
		fmt.Fprintf(o.env.Stdout, "%s for %s: nodes need no statement any more (epoch %d)\n", signed, ref, st.Epoch)
		return
	}
	fmt.Fprintf(o.env.Stdout, "%s for %s until %s: %s, epoch %d", signed, ref, st.Until.Format(time.RFC3339), cli.Clean(st.Target("", "").String()), st.Epoch)
	if n := len(st.Roles) + len(st.Nodes); n > 0 {
		fmt.Fprintf(o.env.Stdout, ", and the own targets of %s", cli.Count(n, "role or node"))
	}
	fmt.Fprintln(o.env.Stdout)
	for _, r := range st.New {
		cli.Cleanf(o.env.Stdout, "  new since the last statement: %s, %s → %s\n", r.Scope, describeTarget(r.Was), describeTarget(r.Target))
	}
}

// warnUnstated warns of a change without the statement that its environment demands.
func warnUnstated(env cli.Env, ref model.Ref, unstated bool) {
	if unstated {
		fmt.Fprintf(env.Stderr, "%s: no statement: nodes that need one stay on their target\n  to sign it, run `pulley sign -e %s --sign-key FILE`\n", program, ref)
	}
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func newOperators(o *options) *cobra.Command {
	return group("operators", "List and revoke operators", `Work on operators: people with certificates of their own, in a fleet whose etcd authenticates its users. A viewer reads
everything. An operator also publishes, promotes, holds, and makes tokens for nodes. An admin has all rights. Operators log in
with a token that an admin makes: pulley token create --operator NAME --as ROLE.`,
		newOperatorsList(o), newOperatorsRevoke(o))
}

func newOperatorsList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List operators, including revoked ones", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withEtcd(c, o.operators) },
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// listedOperator is one operator in the JSON output, without secrets.
type listedOperator struct {
	Name    string              `json:"name"`
	As      access.OperatorRole `json:"as"`
	User    string              `json:"user,omitempty"`
	Joined  time.Time           `json:"joined,omitzero"`
	Until   time.Time           `json:"until,omitzero"`
	By      string              `json:"by,omitempty"`
	Revoked *access.Revoked     `json:"revoked,omitempty"`
}

func (o *options) operators(ctx context.Context, s *etcd.DB) error {
	all, damaged, err := access.IdentitiesIn(s).Operators(ctx)
	if err != nil {
		return err
	}
	listed := make([]listedOperator, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := all[name]
		listed = append(listed, listedOperator{name, i.As, i.User, i.Joined, i.Until, i.By, i.Revoked})
	}
	o.warn(damaged)
	return o.out.Print(o.env, listed, func(t *cli.Table) error {
		t.Row("OPERATOR", "AS", "JOINED", "UNTIL", "BY", "NOTE")
		for _, l := range listed {
			until, note := "", ""
			if !l.Until.IsZero() {
				until = l.Until.UTC().Format(time.DateOnly)
			}
			switch {
			case l.Revoked != nil:
				note = "revoked " + cli.Ago(o.env.Now(), l.Revoked.At) + " by " + l.Revoked.By
				if string(l.Revoked.Why) != "" {
					note += ": " + string(l.Revoked.Why)
				}
			case !l.Until.IsZero() && o.env.Now().After(l.Until):
				note = "the certificate has expired"
			}
			t.Row(l.Name, string(l.As), cli.Ago(o.env.Now(), l.Joined), until, l.By, note)
		}
		return nil
	})
}

func newOperatorsRevoke(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke an operator's certificate at once", Args: arguments(1, 1, "takes one operator"),
		Long: `End an operator's access: etcd refuses the certificate from the next request on. An open connection that only watches
receives events until it is closed. To restore access, make a new token. The command needs an admin. It asks for confirmation:
in scripts, use --yes.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				question := fmt.Sprintf("etcd will refuse the certificate of operator %s.\nRevoke it?", cli.Clean(args[0]))
				if err := o.confirm(ctx, question); err != nil {
					return err
				}
				err := access.IdentitiesIn(s).RevokeOperator(ctx, args[0], access.Revoked{At: o.env.Now().UTC(), By: o.env.User, Why: model.Prose(o.message)})
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "operator %s is revoked: etcd refuses the certificate\n", cli.Clean(args[0]))
				return nil
			})
		},
	}
	o.addMessage(cmd, "reason, shown by operators list")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

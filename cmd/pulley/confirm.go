package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/promotion"
)

// addConfirmation adds the flag of a command that takes something away or back. Such a command shows what it will do, and
// asks with confirm.
func (o *options) addConfirmation(c *cobra.Command) {
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
}

// addDryRun adds the flag --dry-run: etcd then gets no write.
func (o *options) addDryRun(c *cobra.Command) {
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would change, and change nothing")
}

// announceDryRun begins the output of a dry run.
func (o *options) announceDryRun() {
	to := o.env.Stdout
	if o.payload {
		to = o.env.Stderr
	}
	if o.dryRun && o.out.ForPeople() {
		fmt.Fprintln(to, "dry run: nothing changes")
	}
}

// mayConfirm refuses a command that cannot ask, before anything is read.
func (o *options) mayConfirm() error {
	if o.yes || o.dryRun || o.env.Terminal && o.env.ErrTerminal { // a piped reply to a plan that nobody saw
		return nil
	}
	return cli.Usagef("cannot ask for confirmation: no terminal\ngive --yes, or --dry-run to see the changes")
}

// confirm asks a question on the terminal, unless --yes or --dry-run answers it.
func (o *options) confirm(ctx context.Context, question string) error {
	if o.yes || o.dryRun {
		return nil
	}
	if err := o.mayConfirm(); err != nil {
		return err
	}
	return cli.Confirm(ctx, o.env, "--dry-run", question+" [y/N] ", "y", "yes")
}

// shownMoves limits the nodes that a preview lists.
const shownMoves = 20

// showMoves lists the nodes that a change of a target affects.
func (o *options) showMoves(all []promotion.Move) error {
	if len(all) == 0 {
		fmt.Fprintln(o.env.Stdout, "no registered node is affected")
		return nil
	}
	t := cli.NewTable(o.env)
	what := "TARGET"
	if all[0].FromAgent != "" {
		what = "AGENT"
	}
	t.Row("NODE", what, "NEXT "+what)
	for i, m := range all {
		if i == shownMoves {
			t.Row(fmt.Sprintf("… and %d more", len(all)-i))
			break
		}
		if m.FromAgent != "" {
			t.Row(m.Node, m.FromAgent, cmp.Or(m.ToAgent, "any"))
			continue
		}
		t.Row(m.Node, describeTarget(m.From), describeTarget(m.To))
	}
	return t.Flush()
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/store"
)

// answerPoll is how often an operator who waits looks whether a node has answered.
const answerPoll = time.Second

func newNodesRun(o *options, fleet *cli.EnvironmentFlag) *cobra.Command {
	var why string
	var wait time.Duration
	var callOff bool
	cmd := &cobra.Command{
		Use: "run NODE -e ENVIRONMENT", Short: "ask a node for a Puppet run in its next tick, of what it has",
		Long: `run asks a node, through its entry of the list of hosts, to run Puppet once, although nothing is due. Holds, the gate and
waits after failures count as ever; a node that may not run answers why. Nothing connects to the node: it looks when its
schedule says so. --wait says what came of it.

A newer request takes the place of an older one. A node that is being retired is asked for nothing else: --call-off ends its
retirement first, the hold that came with it too, and is refused while an apply is under way. The next apply retires it again
unless the environment calls for it.

EXIT STATUS
  0 asked, or with --wait done; 1 failed, or not answered in time; 2 wrong usage; 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			if wait < 0 {
				return cli.Usagef("cannot wait for %s: give a time to come, as in --wait 10m", wait)
			}
			return o.inFleet(c, *fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				r := o.newRun(why)
				ask := o.askForRun
				if callOff {
					ask = o.callOff
				}
				if err := ask(ctx, s, ref, args[0], r); err != nil {
					return err
				}
				if wait == 0 {
					fmt.Fprintf(o.env.Stdout, "%s is asked for a run, and looks at its next tick\n", args[0])
					return nil
				}
				return o.awaitAnswer(ctx, s, ref, args[0], r, wait)
			})
		},
	}
	cmd.Flags().StringVarP(&why, "message", "m", "", "why, shown with the run")
	cmd.Flags().BoolVar(&callOff, "call-off", false, "end the node's retirement first")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for the answer, up to this long, as in 10m (default: don't)")
	return cmd
}

func (o *options) newRun(why string) agent.Request {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	return agent.Request{
		ID: hex.EncodeToString(id), Do: agent.RequestRun, Why: agent.Prose(why), By: o.env.User, At: o.env.Now().UTC().Truncate(time.Second),
	}
}

// askForRun asks a node that is not being retired: neither by its entry, nor by the books of an apply that has yet to ask it.
func (o *options) askForRun(ctx context.Context, s *store.Store, ref environments.Ref, node string, r agent.Request) error {
	record, err := s.Record(ctx, ref, node)
	if err == nil && record != nil && record.Phase == machines.Retiring {
		err = fmt.Errorf("cannot ask node %s: %w", node, store.ErrRetires)
	}
	if err == nil {
		err = s.Ask(ctx, ref, node, r)
	}
	switch {
	case errors.Is(err, machines.ErrNotListed):
		return notListed(err, ref)
	case errors.Is(err, store.ErrRetires):
		return fmt.Errorf("%w\n`pulley nodes run %s -e %s --call-off` ends that, and asks it for a run", err, node, ref)
	}
	return err
}

func notListed(err error, ref environments.Ref) error {
	return fmt.Errorf("%w\n`pulley nodes -e %s` lists the nodes; a machine gets there by `pulley-agent bootstrap`", err, ref)
}

// awaitAnswer polls, as a node's answer is a part of its status like any other.
func (o *options) awaitAnswer(ctx context.Context, s *store.Store, ref environments.Ref, node string, r agent.Request, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(answerPoll)
	defer tick.Stop()
	for {
		status, _, err := s.Said(ctx, agent.Identity{Environment: ref.String(), Node: node})
		if err != nil {
			return err
		}
		if a := status.Answer; a != nil && a.ID == r.ID {
			if a.Failed() {
				return fmt.Errorf("cannot run Puppet on %s: %s", node, cli.Clean(a.Sentence()))
			}
			fmt.Fprintf(o.env.Stdout, "%s ran: %s\n", node, cli.Clean(string(status.Outcome)))
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("cannot tell what came of it: %s has not answered for %s\nit is asked all the same; `pulley explain %s` says where it is", node, wait, node)
		case <-tick.C:
		}
	}
}

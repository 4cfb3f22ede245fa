package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollouts"
)

func newRolloutWatch(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch [ROLLOUT] -e ENVIRONMENT", Short: "Show a rollout until it ends or needs an operator",
		Long: `watch shows the rollout in progress, or else the newest one, until it has ended or waits for an operator: it is paused, aborted, waits for
an approval, or for nodes that do not answer. On a terminal it is a live view, elsewhere one line for each change.

EXIT STATUS
  0 the rollout completed, or watch was interrupted; 1 failed, 2 wrong usage, 3 etcd unreachable; 4 the rollout needs an operator, or ended
  without completing`,
		Args: arguments(0, 1, "takes at most one rollout"),
		RunE: func(c *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				return o.watchRollout(ctx, s, ref, rollout.Take, id)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	return cmd
}

func (o *options) watchRollout(ctx context.Context, s *etcd.DB, ref model.Ref, kind rollout.Kind, id string) error {
	out, shown, before := o.env.Stdout, "", rollouts.Rollout{}
	r, err := rollouts.LookAtRollout(ctx, s, ref, kind, id, o.env.Now())
	for ; ; r, err = before.Again(ctx, s, ref, o.env.Now()) { // also after another one began
		if err != nil {
			o.detached(before, ref)
			if ctx.Err() != nil {
				err = nil
			}
			return err
		}
		if o.env.Terminal {
			var screen bytes.Buffer
			o.env.Stdout = &screen
			err = o.showRollout(ref, r)
			o.env.Stdout = out
			if err == nil {
				_, err = io.WriteString(out, "\x1b[H\x1b[2J"+screen.String())
			}
		} else {
			err = o.tellRollout(r, before, &shown)
		}
		switch {
		case err != nil:
			return err
		case r.State == rollouts.RolloutCompleted:
			return nil
		case r.State == before.State && r.Sentence() == before.Sentence() && (r.State != rollouts.RolloutAdvancing || r.Waits()):
			return &cli.SilentError{Code: cli.ExitDegraded} // seen twice: a look reads the gate after the state
		}
		before = r
		pause := time.NewTimer(watchPoll)
		select {
		case <-ctx.Done():
			pause.Stop()
			o.detached(r, ref)
			return nil
		case <-pause.C:
		}
	}
}

// detached prints what an interrupted view of a job leaves, and the ways to continue.
func (o *options) detached(r rollouts.Rollout, ref model.Ref) {
	if r.Kind == rollout.Run && r.State == rollouts.RolloutAdvancing {
		fmt.Fprintf(o.env.Stdout, "the view ended, and %s continues\n%s", r.Name(), waysOn(ref))
	}
}

// waysOn lists what an operator can do about a job in progress.
func waysOn(ref model.Ref) string {
	return fmt.Sprintf("to see it: `pulley job watch -e %s`; to end it: `pulley job abort -e %[1]s`\n"+
		"to run the nodes that failed or never ran, once it ended: `pulley job retry -e %[1]s`\n", ref)
}

// tellRollout prints what happened since an earlier look, and what the rollout waits for if that changed.
func (o *options) tellRollout(r, before rollouts.Rollout, shown *string) error {
	at := o.env.Now().UTC().Format(time.RFC3339)
	for _, line := range r.Since(before) {
		cli.Cleanf(o.env.Stdout, "%s %s\n", at, line)
	}
	if now := r.Sentence(); now != *shown {
		*shown = now
		cli.Cleanf(o.env.Stdout, "%s %s\n", at, now)
	}
	return nil
}

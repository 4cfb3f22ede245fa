package main

import (
	"fmt"
	"strconv"
	"time"

	"pulley/internal/cli"
	"pulley/internal/model"
	"pulley/internal/rollouts"
)

// showChanges prints what the runs of a rollout changed on which nodes.
func (o *options) showChanges(ref model.Ref, r rollouts.Rollout) error {
	c := r.Changes
	if len(c.Resources) > 0 {
		t := cli.NewTable(o.env)
		t.Row("RESOURCE", "STATUS", "COUNT", "NODES")
		for i, one := range c.Resources {
			if i == shownMembers {
				t.Row(fmt.Sprintf("… and %d more", len(c.Resources)-i))
				break
			}
			t.Row(one.Resource, one.Status, strconv.Itoa(len(one.Nodes)), nodeNames(one.Nodes))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(c.Runs) > 0 {
		t := cli.NewTable(o.env)
		t.Row("NODE", "RUN", "OUTCOME", "CHANGED", "FAILED", "TOOK")
		for i, run := range c.Runs {
			if i == shownMembers {
				t.Row(fmt.Sprintf("… and %d more", len(c.Runs)-i))
				break
			}
			t.Row(run.Node, run.Run, string(run.Outcome), strconv.Itoa(run.Changed), strconv.Itoa(run.Failed), cli.Span(time.Duration(run.Seconds)*time.Second))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if c.Without > 0 {
		cli.Cleanf(o.env.Stdout, "%s without a record of a run: the node took the target without one, or newer records replaced it\n", cli.Count(c.Without, "node"))
	}
	if c.Unread > 0 {
		cli.Cleanf(o.env.Stdout, "the records of %s are not shown: `pulley runs NODE -e %s` shows those of one node\n", cli.Count(c.Unread, "more node"), ref)
	}
	return nil
}

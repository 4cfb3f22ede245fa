package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

// shownJoin is how a node got its certificate; docs/json.md describes it, and shownBoot.
type shownJoin struct {
	User    string    `json:"user"`
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	Until   time.Time `json:"until"`
	CA      string    `json:"ca"`
	Token   string    `json:"token"`
	By      string    `json:"by"`
}

// shownBoot is where a machine is in its first boot.
type shownBoot struct {
	Machine     string          `json:"machine"`
	Hostname    string          `json:"hostname,omitempty"`
	Step        string          `json:"step"`
	State       store.BootState `json:"state"`
	Error       agent.Prose     `json:"error,omitempty"`
	Attempts    int             `json:"attempts"`
	Started     time.Time       `json:"started"`
	Since       time.Time       `json:"since"`
	Heard       time.Time       `json:"heard"`
	Finished    time.Time       `json:"finished,omitzero"`
	StandsStill bool            `json:"stands_still"`
	Token       string          `json:"token,omitempty"`
	Unlocked    *store.Revoked  `json:"unlocked,omitempty"`
}

// joins is what is known of how machines become nodes.
type joins struct {
	identities map[string]store.Identity
	boots      map[string]*shownBoot // by node
	nameless   []listedNode
}

func (o *options) readJoins(ctx context.Context, s *store.Store, ref environments.Ref) (joins, error) {
	var j joins
	var damaged, more []string
	var err error
	if j.identities, damaged, err = s.Identities(ctx, ref); err != nil {
		return joins{}, err
	}
	all, more, err := s.FirstBoots(ctx, ref)
	if err != nil {
		return joins{}, err
	}
	for _, d := range append(damaged, more...) {
		cli.Complain(o.env, program, fmt.Errorf("warning: %s", d))
	}
	j.arrange(all, o.env.Now())
	return j, nil
}

// arrange gives each node the first boot that was heard of last, and lists the machines that have no name.
func (j *joins) arrange(all map[string]store.FirstBoot, now time.Time) {
	j.boots = map[string]*shownBoot{}
	for _, b := range all {
		shown := &shownBoot{b.Machine, b.Hostname, b.Step, b.State, b.Error, b.Attempts, b.Started, b.Since, b.Heard, b.Finished, b.Stands(now), b.Token, b.Unlocked}
		switch was := j.boots[b.Node]; {
		case b.Node == "" && b.Finished.IsZero():
			j.nameless = append(j.nameless, listedNode{Host: agent.Host{Role: b.Role, Hostname: b.Hostname, MachineID: b.Machine}, FirstBoot: shown})
		case b.Node != "" && (was == nil || was.Heard.Before(b.Heard)):
			j.boots[b.Node] = shown
		}
	}
	slices.SortFunc(j.nameless, func(a, b listedNode) int { return strings.Compare(a.MachineID, b.MachineID) })
}

// of adds what is known of a node.
func (j *joins) of(n listedNode) listedNode {
	n.FirstBoot = j.boots[n.Node]
	i, ok := j.identities[n.Node]
	if !ok {
		return n
	}
	if n.Clone, n.Removed = i.Clone, i.Removed; i.Live() {
		n.Joined = &shownJoin{i.User, i.Machine, i.Joined, i.Until, i.CA, i.Token, i.By}
	}
	return n
}

// words is one cell: the step, since when, and what is wrong. One that is over is no news.
func (b *shownBoot) words(now time.Time) string {
	if b == nil || !b.Finished.IsZero() {
		return ""
	}
	text := b.Step
	switch {
	case b.StandsStill:
		text += " stands still, last heard of " + cli.Ago(now, b.Heard)
	case b.State == store.BootFailed:
		text += " failed " + cli.Ago(now, b.Heard)
	case b.State == store.BootDone:
		text += " done " + cli.Ago(now, b.Heard)
	default:
		text += " since " + cli.Span(now.Sub(b.Since))
	}
	if b.Attempts > 1 {
		text += fmt.Sprintf(" (%d attempts)", b.Attempts)
	}
	if b.Error != "" {
		first, _, _ := strings.Cut(string(b.Error), "\n")
		text += ": " + first
	}
	return text
}

// note is what else there is to know of a node.
func (n listedNode) note(now time.Time) string {
	var notes []string
	if n.Node != "" && !n.CalledFor {
		notes = append(notes, "not called for by the environment")
	}
	if n.Node == "" {
		notes = append(notes, "has no name yet")
	}
	if n.Removed != nil && !n.Registered {
		removed := "removed " + cli.Ago(now, n.Removed.At) + " by " + n.Removed.By
		if n.Removed.Left {
			removed = "left " + cli.Ago(now, n.Removed.At)
		}
		notes = append(notes, removed)
	}
	if c := n.Clone; c != nil {
		notes = append(notes, fmt.Sprintf("another machine came under this name %s, last %s: machine id %.8s%s", cli.Count(c.Times, "time"), cli.Ago(now, c.At), c.Machine, from(c.From)))
	}
	return strings.Join(notes, "; ")
}

func from(address string) string {
	if address == "" {
		return ""
	}
	return " from " + address
}

func newNodesUnlock(o *options, fleet *cli.EnvironmentFlag) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "unlock NODE -e ENVIRONMENT -m REASON", Short: "free a node's name from a machine that is in its first boot under it", Args: arguments(1, 1, "takes one node"),
		Long: `unlock is for a machine that will never finish its first boot: another one may then join under the name, with a token
for exactly this node. It also forgets another machine that came under the name, for which etcd wants an administrator. The machine itself may still go on, until
another one has joined.`,
		RunE: func(c *cobra.Command, args []string) error {
			if why == "" {
				return cli.Usagef("why? give -m REASON: whoever meets the machine will want to know")
			}
			return o.inFleet(c, *fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				freed, err := s.Unlock(ctx, ref, args[0], store.Revoked{At: o.env.Now().UTC().Truncate(time.Second), By: o.env.User, Why: why})
				if errors.Is(err, store.ErrNotFound) {
					return fmt.Errorf("%w: no machine is in its first boot as %s\n`pulley nodes -e %s` shows those that are", err, quoted(args[0]), ref)
				}
				for _, b := range freed {
					cli.Cleanf(o.env.Stdout, "%s of %s is not held any more by machine %s, which was at step %s\n", args[0], ref, b.Machine, b.Step)
				}
				if err == nil && len(freed) == 0 {
					fmt.Fprintf(o.env.Stdout, "the other machine that came as %s is forgotten\n", args[0])
				}
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&why, "message", "m", "", "why, kept with the machine's record")
	return cmd
}

package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/machines/render"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// historyOptions are the flags of both histories: newest first, with one selection and one limit.
type historyOptions struct {
	*options
	selected selectFlags
	since    time.Duration
}

func (h *historyOptions) add(cmd *cobra.Command) *cobra.Command {
	h.fleet.AddFlag(cmd.Flags())
	h.selected.add(cmd)
	h.selected.addLimit(cmd, 50, "number of entries; 0 for all")
	cli.DurationVar(cmd.Flags(), &h.since, "since", 0, "only this last period, as in 24h or 7d (default: no limit)")
	h.out.AddFlags(cmd.Flags())
	return cmd
}

// filter returns which entries the flags select, by time and by scope. A node has the role of the environment, or of
// its name.
func (h *historyOptions) filter(ctx context.Context, s *etcd.DB, ref model.Ref, e *environments.Environment) (func(time.Time, etcd.Scope) bool, error) {
	sel, err := h.selected.value()
	if err != nil {
		return nil, err
	}
	if sel.Where != nil {
		f, err := fleet.Find(ctx, s, ref, sel)
		if err != nil {
			return nil, err
		}
		var notes []string
		if sel, notes, err = fleet.Narrow(ctx, s, ref, f, sel, h.env.Now()); err != nil {
			return nil, err
		}
		h.warn(notes)
	}
	var from time.Time
	if h.since > 0 {
		from = h.env.Now().Add(-h.since)
	}
	return func(at time.Time, scope etcd.Scope) bool {
		return !at.Before(from) && sel.Concerns(scope, fleet.FleetState{Spec: e}.RoleOf)
	}, nil
}

// limited returns the first entries, and how many the limit leaves out.
func limited[T any](all []T, limit int) (first []T, left int) {
	if limit <= 0 || len(all) <= limit {
		return all, 0
	}
	return all[:limit], len(all) - limit
}

func newHistory(o *options) *cobra.Command {
	h := historyOptions{options: o}
	return h.add(&cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "List the changes of targets, newest first",
		Long: `history lists the changes of an environment's targets, newest first. Each is an epoch for ` + "`pulley rollback --to`" + `. With --role
or --node it lists the changes that concern them, and those of all nodes. ` + "`pulley env history`" + ` lists the changes of machines.`,
		Example: `  pulley history -e production --since 7d
  pulley history -e production --node compute1`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.inFleet(c, h.changes) },
	})
}

func (h *historyOptions) changes(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
	if err != nil {
		return err
	}
	has, err := h.filter(ctx, s, ref, e)
	if err != nil {
		return err
	}
	read := 0
	if len(h.selected.roles)+len(h.selected.nodes) == 0 && h.selected.where == "" && h.selected.limit > 0 {
		read = h.selected.limit + 1 // one more, to report that there are more
	}
	all, damaged, err := targets.In(s).History(ctx, ref, read)
	if err != nil {
		return err
	}
	h.warn(damaged)
	all, left := limited(slices.DeleteFunc(all, func(c targets.Change) bool { return !has(c.At, c.Scope()) }), h.selected.limit)
	err = h.out.Print(h.env, all, func(t *cli.Table) error {
		t.Row("EPOCH", "WHEN", "KIND", "SCOPE", "FROM", "TO", "BY", "DATA", "WHY")
		t.Spare("BY")
		for _, c := range all {
			edit := ""
			if c.Edit != nil {
				edit = c.Edit.String()
			}
			kind, from, to := string(c.Kind), describeTarget(c.Before), describeTarget(c.After)
			if r := c.Rollout; r != nil { // no target changed, but those of its nodes do
				kind += " " + r.ID
				switch {
				case r.Agent != "" && c.Kind == targets.Reverted:
					from, to = r.What(), ""
				case r.Agent != "":
					from, to = "", r.What()
				case c.Kind == targets.Reverted:
					from = describeTarget(r.Target.Overlay(c.Before))
				default:
					to = describeTarget(r.Target.Overlay(c.After))
				}
			}
			t.Row(strconv.FormatInt(int64(c.Epoch), 10), cli.Ago(h.env.Now(), c.At), kind, c.Scope().String(),
				from, to, c.By, edit, strings.TrimSpace(string(c.Why)))
		}
		return nil
	})
	h.more(left, read > 0)
	return err
}

func newEnvHistory(o *options) *cobra.Command {
	h := historyOptions{options: o}
	return h.add(&cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "List the changes of an environment's machines, newest first",
		Long: `history lists the machines that ` + "`env apply`, `env watch`" + ` and ` + "`env destroy`" + ` created, replaced or deleted, newest first. etcd keeps
the newest 1,000 entries. ` + "`pulley history`" + ` lists the changes of targets.`,
		Example: `  pulley env history -e production --since 24h
  pulley env history -e production --role compute`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.inFleet(c, h.acts) },
	})
}

func (h *historyOptions) acts(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	all, damaged, err := records.In(s).Acts(ctx, ref, time.Time{})
	if err != nil {
		return err
	}
	h.warn(damaged)
	e, _, err := specs.In(s).Spec(ctx, ref)
	if err == nil && len(all)+len(damaged) == 0 { // the machines of a removed environment stay listed
		e, err = fleet.FindEnvironment(ctx, specs.In(s), ref)
	}
	if err != nil {
		return err
	}
	has, err := h.filter(ctx, s, ref, e)
	if err != nil {
		return err
	}
	slices.Reverse(all)
	all, left := limited(slices.DeleteFunc(all, func(a machines.Act) bool { return !has(a.At, etcd.Scope{Node: a.Node}) }), h.selected.limit)
	err = h.out.Print(h.env, all, func(t *cli.Table) error {
		t.Row("WHEN", "NODE", "DID", "BY", "WHY")
		for _, a := range all {
			t.Row(cli.Ago(h.env.Now(), a.At), a.Node, string(a.Did), a.By, render.Reasons(a.Reasons))
		}
		return nil
	})
	h.more(left, false)
	return err
}

// more reports entries that the limit left out. Of a limited read, their number is unknown.
func (h *historyOptions) more(left int, unknown bool) {
	if left == 0 || !h.out.ForPeople() {
		return
	}
	if unknown {
		left = -1
	}
	cli.More(h.env, left, "entry", "entries")
}

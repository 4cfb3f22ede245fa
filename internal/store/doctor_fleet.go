package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// Bounds of what doctor takes for well with nodes.
const (
	runsOfOneNode = 64               // records that a node keeps in etcd are at most 20
	floodsOn      = 10 * time.Minute // a flood that was seen within that goes on
	applyTakes    = time.Hour        // an apply that is under way for longer waits for something
	named         = 20               // findings of one kind that are told one by one; of the rest only the number is
)

// fleetFacts is what doctor reads of one environment.
type fleetFacts struct {
	ref        environments.Ref
	spec       *environments.Environment // nil: there is none, or it can't be read
	hosts      map[string]agent.Host
	said       map[string]int64 // keys that a node wrote: its status and runs
	identities map[string]Identity
	reserves   map[string]Precreated
	boots      map[string]FirstBoot
	floods     map[string]Flood
	records    map[string]machines.Record
	applying   *etcd.LockHolder // nil: nobody applies it
	damaged    []string
}

// examineFleets reads every environment that any key names. Reserves come before identities: a user that is made ahead
// moves from the one to the other, and must be found in either.
func (s *Doctor) examineFleets(ctx context.Context) (fleets []fleetFacts, err error) {
	names := map[string]bool{}
	for _, root := range []string{s.db.Keys.Environments(), s.db.Keys.AllStatuses(), s.db.Keys.AllRuns(), s.db.Keys.AllIdentities(), s.db.Keys.AllPrecreated()} {
		found, err := s.db.Segments(ctx, root)
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue
		}
		f, err := s.examineFleet(ctx, ref)
		if err != nil {
			return nil, err
		}
		fleets = append(fleets, f)
	}
	return fleets, nil
}

func (s *Doctor) examineFleet(ctx context.Context, ref environments.Ref) (fleetFacts, error) {
	f := fleetFacts{ref: ref, said: map[string]int64{}, hosts: map[string]agent.Host{}}
	var err error
	if f.spec, _, err = s.specs.Spec(ctx, ref); err != nil {
		var damaged *etcd.UnreadableError
		if !errors.As(err, &damaged) {
			return f, err
		}
		f.damaged = append(f.damaged, err.Error())
	}
	hosts, unread, err := etcd.ReadAll[agent.Host](ctx, s.db, s.db.Keys.Env(ref.String()).Hosts())
	if err != nil {
		return f, err
	}
	f.hosts, f.damaged = hosts, append(f.damaged, unread...)
	for _, read := range []func() ([]string, error){
		func() (damaged []string, err error) {
			f.reserves, damaged, err = s.identities.Precreated(ctx, ref)
			return damaged, err
		},
		func() (damaged []string, err error) {
			f.identities, damaged, err = s.identities.List(ctx, ref)
			return damaged, err
		},
		func() (damaged []string, err error) {
			f.boots, damaged, err = s.boots.List(ctx, ref)
			return damaged, err
		},
		func() (damaged []string, err error) {
			f.floods, damaged, err = s.fleet.Floods(ctx, ref)
			return damaged, err
		},
		func() (damaged []string, err error) {
			f.records, damaged, err = s.machines.Records(ctx, ref)
			return damaged, err
		},
	} {
		damaged, err := read()
		if err != nil {
			return f, err
		}
		f.damaged = append(f.damaged, damaged...)
	}
	if f.applying, _, err = etcd.Single[etcd.LockHolder](ctx, s.db, s.db.Keys.Env(ref.String()).Applying()); err != nil {
		return f, err
	}
	for _, prefix := range []string{s.db.Keys.Env(ref.String()).Statuses(), s.db.Keys.Env(ref.String()).NodesRuns()} {
		_, err := s.db.Pages(ctx, prefix, 2000, func(rest string, _ []byte) error {
			node, _, _ := strings.Cut(rest, "/")
			f.said[etcd.Unescape(node)]++
			return nil
		}, clientv3.WithKeysOnly())
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// called reports whether the environment calls for a node.
func (f fleetFacts) called() map[string]bool {
	called := map[string]bool{}
	if f.spec != nil {
		for n := range f.spec.Nodes() {
			called[n.String()] = true
		}
	}
	return called
}

func judgeFleet(d *Diagnosis, f fleetFacts, now time.Time) {
	env, before := f.ref.String(), len(*d)
	for _, problem := range f.damaged {
		d.of(env, "", "readable", Problem, problem, "`pulley` may be older than what wrote it; else write it anew")
	}
	if f.spec == nil {
		d.of(env, "", "leftovers", Warning, "environment "+env+" is not there, and keys of its nodes are", "store it: `pulley env apply`; or remove its nodes: `pulley nodes remove NODE -e "+env+" --forget`")
	}
	judgeFloods(d, f, now)
	for node, i := range sorted(f.identities) {
		judgeIdentity(d, f, node, i, now)
	}
	for machine, b := range sorted(f.boots) {
		name := b.Node
		if name == "" {
			name = "machine " + machine
		}
		switch {
		case b.Stands(now):
			text := fmt.Sprintf("the first boot of %s stands still at step %s; last heard of %s ago", name, b.Step, now.Sub(b.Heard).Round(time.Minute))
			d.of(env, b.Node, "first-boot", Problem, text+said(string(b.Error)), "look at its console, or `journalctl -u pulley-first-boot`; `pulley nodes unlock` lets another machine have its name")
		case b.Finished.IsZero() && b.State == BootFailed:
			d.of(env, b.Node, "first-boot", Warning, fmt.Sprintf("the first boot of %s fails at step %s and tries again", name, b.Step)+said(string(b.Error)), "")
		}
	}
	judgeLeftovers(d, f)
	judgeMachines(d, f, now)
	if len(*d) == before {
		d.of(env, "", "nodes", Fine, fmt.Sprintf("nothing is wrong with the %d nodes of %s", len(f.hosts), env), "")
	}
}

func said(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

func judgeFloods(d *Diagnosis, f fleetFacts, now time.Time) {
	env := f.ref.String()
	for node, flood := range sorted(f.floods) {
		severity, verb := Warning, "flooded"
		if now.Sub(flood.Last) < floodsOn {
			severity, verb = Problem, "floods"
		}
		d.of(env, node, "flood", severity, fmt.Sprintf("%s %s etcd: %d KiB and %d writes within its worst minute", node, verb, flood.Bytes>>10, flood.Writes), removal(node, env))
	}
	for node, keys := range sorted(f.said) {
		if keys > runsOfOneNode {
			d.of(env, node, "flood", Problem, fmt.Sprintf("%s has %d keys in etcd, and a node keeps about 20", node, keys), removal(node, env))
		}
	}
}

func removal(node, env string) string {
	return "shut it out and clean up: `pulley nodes remove " + node + " -e " + env + " --forget`"
}

func judgeIdentity(d *Diagnosis, f fleetFacts, node string, i Identity, now time.Time) {
	env := f.ref.String()
	if !i.Live() {
		return
	}
	if c := i.Clone; c != nil {
		d.of(env, node, "clone", Problem, fmt.Sprintf("another machine comes as %s: machine id %s, hostname %s, from %s, %d times, last %s ago", node, c.Machine, c.Hostname, c.From, c.Times, now.Sub(c.At).Round(time.Second)),
			"give the other machine a name and a machine id of its own; if it is to be "+node+": `pulley nodes remove "+node+" -e "+env+"`, and a new token for it")
	}
	again := "look why it does not renew by itself (`pulley-agent run` on it says); once it ended: `pulley token create -e " + env + " --node " + node + "`, and boot it anew with that"
	switch left, life := i.Until.Sub(now), i.Until.Sub(i.Issued); {
	case i.Until.IsZero():
	case left <= 0:
		d.of(env, node, "certificate", Problem, "the certificate of "+node+" ended on "+i.Until.UTC().Format(time.DateOnly), again)
	case left < life/6: // it begins to try when a third is left
		d.of(env, node, "certificate", Warning, "the certificate of "+node+" ends on "+i.Until.UTC().Format(time.DateOnly)+" and was not renewed", again)
	}
	if _, listed := f.hosts[node]; !listed {
		d.of(env, node, "leftovers", Warning, node+" has an identity, and is not on the list of hosts", "`pulley nodes add "+node+" -e "+env+"`, or `pulley nodes remove "+node+" -e "+env+"`")
	}
}

// judgeLeftovers finds what nodes left behind that are on no list.
func judgeLeftovers(d *Diagnosis, f fleetFacts) {
	env, called, told := f.ref.String(), f.called(), 0
	var more []string
	for node, keys := range sorted(f.said) {
		_, listed := f.hosts[node]
		i := f.identities[node]
		if listed || called[node] || i.Live() {
			continue
		}
		if told++; told > named {
			more = append(more, node)
			continue
		}
		why := "is on no list"
		if i.Removed != nil {
			why = "was removed"
		}
		d.of(env, node, "leftovers", Warning, fmt.Sprintf("%s %s, and %d keys of what it said are left", node, why, keys), "`pulley nodes remove "+node+" -e "+env+" --forget`")
	}
	if len(more) > 0 {
		d.of(env, "", "leftovers", Warning, fmt.Sprintf("and %d nodes more left keys behind, from %s to %s", len(more), more[0], more[len(more)-1]), "remove them the same way")
	}
	for node := range sorted(f.reserves) {
		i := f.identities[node]
		if f.spec != nil && !called[node] || i.Live() {
			d.of(env, node, "leftovers", Warning, "an etcd user was made ahead for "+node+", which needs none", "`pulley serve` drops it by itself; or: `pulley doctor --mend`")
		}
	}
}

// judgeMachines finds machines that nobody will ask for the end of. While somebody applies, that is what they may be at.
func judgeMachines(d *Diagnosis, f fleetFacts, now time.Time) {
	env, called := f.ref.String(), f.called()
	if f.applying != nil {
		if age := now.Sub(f.applying.Since); age > applyTakes {
			d.of(env, "", "applying", Warning, fmt.Sprintf("%s applies %s since %s ago, and nobody else can", clip.Text(f.applying.By, 64), env, age.Round(time.Minute)),
				"look at where that runs; ended there, it goes by itself within a minute")
		}
		return
	}
	told, more := 0, 0
	for node, r := range sorted(f.records) {
		_, listed := f.hosts[node]
		i := f.identities[node]
		if listed || called[node] || i.Live() {
			continue
		}
		if told++; told > named {
			more++
			continue
		}
		d.of(env, node, "machines", Warning, fmt.Sprintf("pulley had machine %s made for %s, which nothing calls for and is on no list: the machine may still be there", r.Name, node),
			"`pulley env plan` says what is there of it; `pulley env apply` retires it, and `pulley env destroy` all of the environment")
	}
	if more > 0 {
		d.of(env, "", "machines", Warning, fmt.Sprintf("and %d machines more", more), "")
	}
}

// sorted goes through a map in the order of its keys.
func sorted[T any](m map[string]T) func(yield func(string, T) bool) {
	return func(yield func(string, T) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

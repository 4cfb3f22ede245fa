// Package preview shows what a release would change on some nodes of an environment: it orders the preview, waits for the
// answers, and groups them on one page. The nodes run the release as noop, in addition to their own runs. The package must
// never change a target, a status or a node.
package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
)

// Query selects a candidate and the nodes that show it.
type Query struct {
	Release    string // version, or a constraint; "": each node's own
	Generation model.Generation
	Selection  fleet.Selection
	Except     []string // nodes that never show it
	Sample     int      // nodes of each role; 0: all selected nodes
	Wait       time.Duration
	By         string
}

// Progress is how far a preview is.
type Progress struct {
	Answered, Ordered int
	Last              NodeResult // that answered a moment ago; zero: none
}

// DefaultSample is the number of nodes of each role, and DefaultWait the time for their answers, of a preview without others.
const (
	DefaultSample = 2
	DefaultWait   = 15 * time.Minute
)

// poll is the interval between two reads of the answers. renewEvery is the interval of keeping the
// orders alive: they end a minute after a killed command.
const (
	poll       = time.Second
	renewEvery = 15 * time.Second
)

// Run orders a preview and waits for the answers. It withdraws the orders before it returns. It returns the page also if
// nodes did not answer in time. notes are about the selection, for the user.
func Run(ctx context.Context, s *etcd.DB, ref model.Ref, q Query, now func() time.Time, progress func(Progress)) (page Page, notes []string, err error) {
	target, err := candidate(ctx, s, ref, q)
	if err != nil {
		return page, nil, err
	}
	f, err := fleet.Find(ctx, s, ref, q.Selection)
	if err != nil {
		return page, nil, err
	}
	sel, notes, err := fleet.Narrow(ctx, s, ref, f, q.Selection, now())
	if err != nil {
		return page, notes, err
	}
	for _, node := range q.Except {
		delete(f.Hosts, node)
	}
	nodes := slices.DeleteFunc(fleet.Look(f, ref, sel, now()).Nodes, func(n fleet.Node) bool { _, listed := f.Hosts[n.Node]; return !listed })
	chosen, left := choose(nodes, q.Sample)
	if len(chosen) == 0 {
		return page, notes, fmt.Errorf("cannot preview %s in %s: no registered node is selected\n`pulley nodes -e %s` lists the nodes", target, ref, ref)
	}
	id := fmt.Sprintf("%016x", rand.Uint64())
	orders := map[string]model.PreviewOrder{}
	for _, n := range chosen {
		orders[n.Node] = model.PreviewOrder{
			ID: id, Machine: f.Hosts[n.Node].MachineID, Target: target, Limit: q.Wait, By: q.By, At: now().UTC().Truncate(time.Second),
		}
	}
	ordered, err := fleet.In(s).OrderPreviews(ctx, ref, orders)
	if err != nil {
		return page, notes, err
	}
	results, err := await(ctx, ordered, chosen, id, q.Wait, now, progress)
	err = errors.Join(err, ordered.Withdraw(ctx))
	if err != nil {
		return page, notes, err
	}
	return pageOf(ref, target, results, left), notes, nil
}

// candidate returns the target to show. Nodes fill in what the query does not name.
func candidate(ctx context.Context, s *etcd.DB, ref model.Ref, q Query) (model.Target, error) {
	var t model.Target
	if q.Release != "" {
		d, err := targets.In(s).Desires(ctx, ref)
		if err != nil {
			return t, err
		}
		_, exact := release.ParseVersion(q.Release)
		taker, err := choice.Of(ctx, release.In(s), ref, false, d.Default.Release)
		if err != nil {
			return t, err
		}
		taker.Shows = exact == nil
		r, err := taker.Resolve(ctx, release.In(s), q.Release)
		if err != nil {
			return t, err
		}
		if r.PuppetEnvironment != "" {
			return t, fmt.Errorf("cannot preview %s: it names environment %s of a Puppet server, and only the server can compile it\n"+
				"run `pulley-agent run --noop --release %s` on a node: it shows what that node's server would change", r.Version, r.PuppetEnvironment, r.Version)
		}
		t = r.Target()
	}
	if q.Generation != 0 {
		g, err := targets.In(s).Generation(ctx, ref.String(), q.Generation)
		if err != nil {
			return t, err
		}
		t.Data, t.DataDigest = q.Generation, hieradata.Digest(g.Record)
	}
	return t, nil
}

// choose returns all nodes, or a sample of each role: nodes that can answer first. left is the number of the others.
func choose(nodes []fleet.Node, sample int) (chosen []fleet.Node, left int) {
	byRole := map[string]int{}
	able := slices.Clone(nodes)
	slices.SortStableFunc(able, func(a, b fleet.Node) int { return cmp.Compare(inability(a), inability(b)) })
	for _, n := range able {
		if sample > 0 && byRole[n.Role] == sample {
			left++
			continue
		}
		byRole[n.Role]++
		chosen = append(chosen, n)
	}
	slices.SortStableFunc(chosen, func(a, b fleet.Node) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), fleet.CompareNatural(a.Node, b.Node))
	})
	return chosen, left
}

// inability ranks nodes by how well they represent their role: a converged one best, a silent one not at all.
func inability(n fleet.Node) int {
	switch n.State {
	case model.Converged:
		return 0
	case model.Silent, model.Held, model.Unregistered:
		return 2
	}
	return 1
}

// await reads the answers until each node that can answer did, or until the deadline. Nobody waits for silent nodes.
func await(ctx context.Context, orders *fleet.Previews, nodes []fleet.Node, id string, wait time.Duration, now func() time.Time, progress func(Progress)) ([]NodeResult, error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var renewed time.Time // the orders took a part of their minute to write
	results, index, answered := make([]NodeResult, len(nodes)), map[string]int{}, 0
	var open []string
	for i, n := range nodes {
		index[n.Node] = i
		results[i] = silent(n)
		open = append(open, n.Node)
	}
	progress(Progress{Ordered: len(nodes)})
	for {
		err := orders.Answers(ctx, open, func(node string, answer []byte) {
			i := index[node]
			p, err := model.DecodePreview(answer)
			switch {
			case err == nil && p.Order != id:
				return // to an earlier order
			case err != nil:
				results[i] = unreadable(nodes[i], err)
			default:
				results[i] = resultOf(nodes[i], p)
			}
			answered++
			progress(Progress{answered, len(nodes), results[i]})
		})
		if at := now(); err == nil && at.Sub(renewed) >= renewEvery {
			if err = orders.Renew(ctx); err == nil {
				renewed = at
			}
		}
		if err != nil && !errors.Is(err, model.ErrUnreachable) {
			return nil, err
		}
		open = slices.DeleteFunc(open, func(node string) bool { return results[index[node]].answered() })
		if !slices.ContainsFunc(open, func(node string) bool { return !results[index[node]].away }) && err == nil {
			return results, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return results, err
		case <-tick.C:
		}
	}
}

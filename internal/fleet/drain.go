package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Drained is how far a drain is.
type Drained struct {
	Runs    int      // that were in progress at its begin
	Running []string // nodes whose run has not ended, in order
	Silent  []string // nodes that may run Puppet without etcd's knowledge, in order
}

// Sentence renders the progress.
func (d Drained) Sentence() string {
	text := fmt.Sprintf("%d of %s ended", d.Runs-len(d.Running), cli.Count(d.Runs, "run"))
	if len(d.Running) > 0 {
		text += "; running: " + some(d.Running)
	}
	return text
}

// some lists the first names.
func some(nodes []string) string {
	text := strings.Join(nodes[:min(len(nodes), maxReasons)], ", ")
	if more := len(nodes) - maxReasons; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Drain waits until the runs have ended that are in progress on the nodes of a scope. A caller that set a hold before misses
// none: a node announces a run in a transaction that compares the holds. While etcd is unreachable, Drain tries again until the
// deadline. It calls progress after each read. It returns *StillRunningError at the deadline.
func Drain(ctx context.Context, s *Fleet, ref model.Ref, scope etcd.Scope, limit time.Duration, now func() time.Time, progress func(Drained)) (d Drained, err error) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	var runs map[string]string // of nodes; nil before the first read
	for {
		began := time.Now()
		f, err := s.State(ctx, ref)
		switch {
		case errors.Is(err, model.ErrUnreachable):
		case err != nil:
			return d, err
		default:
			if runs == nil {
				runs = runsOf(f, scope)
				d.Runs = len(runs)
			} else {
				maps.DeleteFunc(runs, func(node, run string) bool {
					return f.Statuses[node].Phase != model.Running || f.Statuses[node].LastRun != run
				})
			}
			d.Running, d.Silent = slices.SortedFunc(maps.Keys(runs), CompareNatural), silentIn(f, scope, now())
			progress(d)
			if len(runs) == 0 {
				return d, nil
			}
		}
		pause := time.NewTimer(max(awaitPoll, awaitPause*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return d, ctx.Err()
		case <-deadline.C:
			pause.Stop()
			if err != nil {
				return d, err
			}
			return d, &StillRunningError{Ref: ref, Drained: d, After: limit}
		case <-pause.C:
		}
	}
}

// runsOf returns the run in progress of each node of a scope that has one.
func runsOf(f FleetState, scope etcd.Scope) map[string]string {
	runs := map[string]string{}
	for node, h := range f.Hosts {
		if st := f.Statuses[node]; scope.Has(h.Role, node) && st.Phase == model.Running {
			runs[node] = st.LastRun
		}
	}
	return runs
}

// silentIn lists the silent nodes of a scope.
func silentIn(f FleetState, scope etcd.Scope, now time.Time) (nodes []string) {
	for node, h := range f.Hosts {
		if st, reported := f.Statuses[node]; scope.Has(h.Role, node) && reported && now.After(st.SilentFrom(f.Desires.Silence(), now)) {
			nodes = append(nodes, node)
		}
	}
	slices.SortFunc(nodes, CompareNatural)
	return nodes
}

// StillRunningError is the result of a drain in which not all runs ended.
type StillRunningError struct {
	Ref model.Ref
	Drained
	After time.Duration
}

// ExitStatus is the exit code of the command that waited.
func (e *StillRunningError) ExitStatus() int { return cli.ExitTimeout }

func (e *StillRunningError) Error() string {
	return fmt.Sprintf("cannot complete the drain of %s: %d of %s did not end within %s, on %s\nthe hold stays in force: `pulley status -e %[1]s` shows the nodes",
		e.Ref, len(e.Running), cli.Count(e.Runs, "run"), cli.Duration(e.After), some(e.Running))
}

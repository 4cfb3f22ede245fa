package rollout

import (
	"cmp"
	"time"

	"pulley/internal/model"
)

// JobConcurrency is the default of a job's nodes at a time, and MaxJobConcurrency the most: all nodes in progress are in one value of etcd,
// which may have 1.5 MiB, and which is written at each change.
const (
	JobConcurrency    = 500
	MaxJobConcurrency = 2000
)

// MakeJob plans a job over layers of nodes: each layer needs only earlier ones. Of the policy, it uses the batch (default: the complete
// layer), the concurrency (default: JobConcurrency), the failures, the deadline and the progress.
func MakeJob(o Order, layers [][]Member) (Plan, error) {
	policy := Policy{Batch: o.Policy.Batch, Concurrency: o.Policy.Concurrency, Failures: o.Policy.Failures, Deadline: o.Policy.Deadline, Progress: o.Policy.Progress, KeepWaiting: o.Policy.KeepWaiting}
	policy = policy.withDefaults()
	policy.Canaries, policy.Batch, policy.Sample, policy.Progress = "", o.Policy.Batch, 0, o.Policy.Progress // each node has its deadline
	policy.Concurrency = cmp.Or(policy.Concurrency, JobConcurrency)
	p := Plan{Kind: Run, Noop: o.Noop, Policy: policy, By: o.By, Why: model.Prose(o.Why), At: o.At.UTC().Truncate(time.Second)}
	for _, nodes := range layers {
		if len(nodes) == 0 {
			continue
		}
		batch := len(nodes)
		if o.Policy.Batch != "" {
			batch = min(batch, o.Policy.Batch.Of(len(nodes), 1))
		}
		p.Groups = append(p.Groups, Group{Kind: Layer, Number: len(p.Groups) + 1, Batch: batch, Size: len(nodes), Nodes: nodes})
	}
	if len(p.Groups) == 0 {
		return Plan{}, ErrEmpty
	}
	return p, nil
}

// job decides on the next step of a job. All its nodes are ordered to wait. When none of them runs, they are ordered to run, layer by
// layer; a node that ran waits until the job ends. A job that failed lets the nodes in progress end, and those that did not begin do not run.
func (a *advance) job() Step {
	if a.o.Gone || a.o.Reached > a.p.Epoch { // etcd was restored from an older backup
		return a.over(Gone)
	}
	for _, node := range a.s.slots() {
		a.judge(node)
	}
	if a.s.Stop == nil {
		a.limits()
	}
	a.s.Closed = time.Time{} // the gate stays open: a stop ends the job
	switch {
	case a.s.Stop != nil && !a.busy():
		return a.over(Failed)
	case a.s.Stop == nil && a.gathered():
		a.fill()
		a.began()
	}
	if a.changed {
		return Step{State: &a.s}
	}
	return Step{Assign: append(a.assign(), a.waiting()...), Withdraw: a.withdraw(), Wait: a.waits()}
}

func (a *advance) over(p Phase) Step {
	a.s.Phase, a.s.Ended = p, a.now
	a.batchEnded(true)
	return Step{State: &a.s}
}

// gathered reports whether all nodes wait and none of them runs. A node that began before its wait was written may still run: its status
// is read after the wait.
func (a *advance) gathered() bool {
	if a.s.Gathered {
		return true
	}
	var busy []string
	for _, g := range a.p.Groups {
		for _, m := range g.Nodes {
			n, read := a.o.Nodes[m.Node]
			switch {
			case !read || a.missing(m, n):
				a.wait = Wait{Code: WaitRead}
				return false
			case n.Status != nil && n.Status.Phase == model.Running && here(m, n):
				busy = append(busy, m.Node)
			}
		}
	}
	if len(busy) > 0 {
		if a.s.Busy.IsZero() {
			a.s.Busy, a.changed = a.now, true
		}
		some := busy[:min(len(busy), named)]
		a.wait = Wait{Code: WaitIdle, Nodes: some, Count: len(busy), Until: a.s.Busy.Add(time.Duration(a.p.Policy.Deadline))}
		if !a.now.Before(a.wait.Until) {
			a.halt(Stop{Code: StopBusy, Nodes: some})
			a.s.Closed = time.Time{}
		}
		return false
	}
	a.s.Gathered, a.s.Moved, a.changed = true, a.now, true
	return false // written before a node begins
}

// stopped reports whether a job stopped: no other node begins.
func (a *advance) stopped() bool { return a.p.Kind == Run && a.s.Stop != nil }

// here reports whether a member of the plan is registered, on its machine.
func here(m Member, n Node) bool { return n.Host != nil && n.Host.MachineID == m.Machine }

// missing reports whether a node was not ordered to wait yet.
func (a *advance) missing(m Member, n Node) bool {
	return here(m, n) && (n.Assigned == nil || !a.p.Ordered(n.Assigned.ID) || n.Assigned.Epoch != a.p.Epoch)
}

// kept reports whether a hold, or the machine itself, keeps a node of a job from its turn.
func (a *advance) kept(n Node) bool {
	return a.p.Kind == Run && isHeld(n) && n.View.Reason != model.ReasonWaits
}

// waiting returns the orders to wait that etcd lacks.
func (a *advance) waiting() (all []Assign) {
	if a.s.Gathered || a.s.Stop != nil {
		return nil
	}
	for _, g := range a.p.Groups {
		for _, m := range g.Nodes {
			if n, read := a.o.Nodes[m.Node]; read && a.missing(m, n) {
				all = append(all, Assign{m.Node, a.p.Waits(m.Machine)})
			}
		}
	}
	return all
}

// Waits is the order to wait for a node of a job.
func (p Plan) Waits(machine string) model.Assignment {
	return model.Assignment{ID: p.order("wait"), Kind: model.AssignWait, Machine: machine, Rollout: p.ID, Epoch: p.Epoch}
}

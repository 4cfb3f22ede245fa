package rollouts

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// RolloutChanges is what the runs of a rollout changed, as far as etcd still has their records: of a node, the newest ones stay.
type RolloutChanges struct {
	Runs      []RolloutRun      `json:"runs"`      // the last one of each node, in the order of the nodes' names
	Resources []ResourceOnNodes `json:"resources"` // those of most nodes first; failed ones before all others
	Without   int               `json:"without"`   // nodes that took the target, without such a record
	Unread    int               `json:"unread"`    // nodes beyond the limit of one answer
}

// RolloutRun is a node's last run for a rollout.
type RolloutRun struct {
	Node    string        `json:"node"`
	Run     string        `json:"run"`
	Outcome model.Outcome `json:"outcome"`
	Changed int           `json:"changed"` // resources; with those of its earlier attempts
	Failed  int           `json:"failed"`
	Started time.Time     `json:"started"` // by the node's clock
	Seconds int64         `json:"seconds"`
}

// ResourceOnNodes is a resource that runs changed, or could not apply, on some nodes.
type ResourceOnNodes struct {
	Resource string   `json:"resource"`
	Status   string   `json:"status"` // changed or failed
	Nodes    []string `json:"nodes"`
}

// maxNodesRead limits the nodes whose run records one answer reads, up to 64 KiB each.
const maxNodesRead = 200

// ReadChanges reads what the runs of a rollout that has ended changed on its nodes. It does nothing for one in progress, and for one
// of an agent, which runs no Puppet.
func ReadChanges(ctx context.Context, s *etcd.DB, ref model.Ref, r *Rollout) error {
	if r.Ended.IsZero() || r.Kind != rollout.Take || r.Agent != "" {
		return nil
	}
	never := map[string]bool{}
	for _, m := range r.Members { // those in progress at the end may have begun
		never[m.Node] = m.State == NodeSkipped || m.Code == rollout.NotReady || m.Code == rollout.DeadlineEnded
	}
	nodes := slices.SortedFunc(maps.Keys(r.took), fleet.CompareNatural)
	nodes = slices.DeleteFunc(nodes, func(node string) bool { return never[node] })
	read := nodes[:min(len(nodes), maxNodesRead)]
	r.Changes = &RolloutChanges{Runs: []RolloutRun{}, Resources: []ResourceOnNodes{}, Unread: len(nodes) - len(read)}
	index := map[string]int{} // of resources, by status and name
	for _, node := range read {
		runs, _, err := fleet.In(s).Runs(ctx, ref, node)
		if err != nil {
			return err
		}
		runs = slices.DeleteFunc(runs, func(run model.Run) bool { return !r.plan.Ordered(run.Assignment) })
		if first := slices.IndexFunc(runs, func(run model.Run) bool { return run.Kind == model.Success }); first >= 0 {
			runs = runs[:first+1] // later ones only enforced the target
		}
		r.Changes.add(node, r.took[node], runs, index)
	}
	slices.SortStableFunc(r.Changes.Resources, func(a, b ResourceOnNodes) int {
		return cmp.Or(strings.Compare(b.Status, a.Status), len(b.Nodes)-len(a.Nodes), strings.Compare(a.Resource, b.Resource))
	})
	return nil
}

// add adds a node's runs for the rollout, oldest first.
func (c *RolloutChanges) add(node string, took bool, runs []model.Run, index map[string]int) {
	if len(runs) == 0 {
		if took {
			c.Without++
		}
		return
	}
	last := runs[len(runs)-1]
	one := RolloutRun{Node: node, Run: last.ID, Outcome: last.Outcome, Failed: last.Counts.Failed, Started: last.Started, Seconds: int64(last.Duration / time.Second)}
	final := map[string]string{} // of each resource: an attempt may repair what an earlier one could not
	for _, run := range runs {
		one.Changed += run.Counts.Changed
		for _, e := range run.Resources {
			if e.Status == "changed" || e.Status == "failed" {
				final[e.Resource] = e.Status
			}
		}
	}
	c.Runs = append(c.Runs, one)
	for resource, status := range final {
		at, known := index[status+" "+resource]
		if !known {
			at, c.Resources = len(c.Resources), append(c.Resources, ResourceOnNodes{Resource: resource, Status: status})
			index[status+" "+resource] = at
		}
		c.Resources[at].Nodes = append(c.Resources[at].Nodes, node)
	}
}

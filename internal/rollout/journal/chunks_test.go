package journal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pulley/environments/applications"
	"pulley/internal/rollout"
)

// etcd refuses a value of more than 1.5 MiB, and a transaction of more than 128 operations: a job over nodes with many components, or with
// many layers, would not start.
func TestChunksOfMembersAreBounded(t *testing.T) {
	t.Parallel()
	long := applications.Name{Application: strings.Repeat("a", 255), Instance: strings.Repeat("b", 255), Component: strings.Repeat("c", 255)}
	for _, c := range []struct{ names, layers, most int }{{0, 1, 3}, {0, 2500, 3}, {1, 3, 20}, {50, 7, 900}} {
		members := func(n int) (all []rollout.Member) {
			for i := range n {
				m := rollout.Member{Node: fmt.Sprintf("web%d", i+1), Machine: strings.Repeat("0", 32)}
				for range c.names {
					m.Does = append(m.Does, long)
				}
				all = append(all, m)
			}
			return all
		}
		p := rollout.Plan{Outside: members(3)}
		for range c.layers {
			p.Groups = append(p.Groups, rollout.Group{Nodes: members(5000 / c.layers)})
		}
		all := chunks(p)
		if len(all) > c.most {
			t.Errorf("%+v: %d chunks", c, len(all))
		}
		read := rollout.Plan{Groups: make([]rollout.Group, c.layers)}
		for _, one := range all {
			b, err := json.Marshal(one)
			if err != nil || len(b) > 1<<20 {
				t.Fatalf("%+v: a chunk has %d bytes: %v", c, len(b), err)
			}
			for _, part := range one.Parts {
				if part.Group == outside {
					read.Outside = append(read.Outside, part.Members...)
				} else {
					read.Groups[part.Group].Nodes = append(read.Groups[part.Group].Nodes, part.Members...)
				}
			}
		}
		if fmt.Sprint(read) != fmt.Sprint(p) {
			t.Errorf("%+v: the chunks have other nodes than the plan", c)
		}
	}
}

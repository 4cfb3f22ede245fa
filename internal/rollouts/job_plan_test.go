package rollouts

import (
	"strings"
	"testing"
	"time"
)

// An operator decides by these times whether a job fits into the night.
func TestJobTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sentence, runs string // of each node in minutes, by group; 0: unknown
		order          JobOrder
		want           JobTime
	}{
		{"the slowest node of each group", "5 | 3 9 1", JobOrder{}, JobTime{Likely: 14 * time.Minute, Batches: 2, Most: 3 * time.Hour}},
		{"batches one after the other", "4 1 2", JobOrder{Batch: "2"}, JobTime{Likely: 6 * time.Minute, Batches: 2, Most: 3 * time.Hour}},
		{"a share of a group", "1 1 1 1", JobOrder{Batch: "25%"}, JobTime{Likely: 4 * time.Minute, Batches: 4, Most: 5 * time.Hour}},
		{"the next node begins when one ended", "6 1 1 1", JobOrder{Concurrency: 2}, JobTime{Likely: 6 * time.Minute, Batches: 2, Most: 3 * time.Hour}},
		{"more places than nodes", "2", JobOrder{Concurrency: 50, Deadline: time.Minute}, JobTime{Likely: 2 * time.Minute, Batches: 1, Most: 2 * time.Minute}},
		{"a node without a run", "5 | 0 2", JobOrder{Deadline: 30 * time.Minute}, JobTime{Likely: 7 * time.Minute, Batches: 2, Unknown: 1, Most: 90 * time.Minute}},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			p := JobPlan{}
			for _, group := range strings.Split(c.runs, "|") {
				g := JobGroup{}
				for _, minutes := range strings.Fields(group) {
					took, err := time.ParseDuration(minutes + "m")
					if err != nil {
						t.Fatal(err)
					}
					g.Nodes = append(g.Nodes, JobNode{LastRun: took})
				}
				p.Groups = append(p.Groups, g)
			}
			if got := p.takes(c.order); got != c.want {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		})
	}
}

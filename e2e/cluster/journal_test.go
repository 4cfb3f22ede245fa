//go:build e2e

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// outcome is what the author of a write was told.
type outcome string

const (
	acknowledged outcome = "acknowledged" // it must be in force
	unknown      outcome = "unknown"      // it may be in force
	refused      outcome = "refused"      // it must not be in force
)

// The kinds of writes.
const (
	tokenWrite     = "token"
	dataWrite      = "data"
	releaseWrite   = "release"
	promotionWrite = "promotion"
	joinWrite      = "join"
	runWrite       = "run" // a node's report of a run
)

// keptRuns is the number of a node's newest runs that etcd must have. It deletes older ones.
const keptRuns = 10

// write is one write with a key of its own.
type write struct {
	kind, key string
	outcome   outcome
	answer    string
}

// fault is one act against members or serves. From its time on, nodes must find another way.
type fault struct {
	kind string
	at   time.Time
	ends time.Time // of a fault that takes the quorum: nodes cannot succeed before
}

// tick is one run of a node's agent.
type tick struct {
	node   string
	began  time.Time
	took   time.Duration
	exit   int  // -1: killed by the test
	puppet bool // it ran Puppet
}

// journal is what happened. It is safe for concurrent use.
type writeLog struct {
	mu     sync.Mutex
	writes []write
	faults []fault
	ticks  []tick
}

func (j *writeLog) wrote(kind, key string, o outcome, answer string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = append(j.writes, write{kind, key, o, answer})
}

func (j *writeLog) ticked(t tick) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ticks = append(j.ticks, t)
}

func (j *writeLog) fault(f fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = append(j.faults, f)
}

// judge compares the writes with what is in force. It returns the number of writes by kind and outcome.
func (j *writeLog) judge(inForce map[string]map[string]bool) (wrong []string, count map[string]map[outcome]int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	count = map[string]map[outcome]int{}
	newer := map[string]int{} // runs of each node
	for _, w := range slices.Backward(j.writes) {
		if count[w.kind] == nil {
			count[w.kind] = map[outcome]int{}
		}
		count[w.kind][w.outcome]++
		if node, _, _ := strings.Cut(w.key, " "); w.kind == runWrite {
			if newer[node]++; newer[node] > keptRuns {
				continue
			}
		}
		is := inForce[w.kind][w.key]
		if w.outcome == acknowledged && !is {
			wrong = append(wrong, fmt.Sprintf("lost: %s %s was acknowledged: %s", w.kind, w.key, w.answer))
		}
		if w.outcome == refused && is {
			wrong = append(wrong, fmt.Sprintf("untrue: %s %s is in force, and its author got: %s", w.kind, w.key, w.answer))
		}
	}
	return wrong, count
}

// failover returns, in order, the time from each fault to the end of each node's first good tick that began after it.
func (j *writeLog) failover() (all []time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.faults {
		from := f.at
		if f.ends.After(from) {
			from = f.ends
		}
		known, first := map[string]bool{}, map[string]time.Duration{}
		for _, t := range j.ticks {
			if t.began.Before(from) {
				known[t.node] = true
				continue
			}
			end := t.began.Add(t.took).Sub(from)
			if best, ok := first[t.node]; t.exit == 0 && known[t.node] && (!ok || end < best) {
				first[t.node] = end
			}
		}
		for _, d := range first {
			all = append(all, d)
		}
	}
	slices.Sort(all)
	return all
}

// exits counts the ticks by their exit code.
func (j *writeLog) exits() map[int]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := map[int]int{}
	for _, t := range j.ticks {
		all[t.exit]++
	}
	return all
}

// kinds counts the faults.
func (j *writeLog) kinds() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	count, names := map[string]int{}, []string{}
	for _, f := range j.faults {
		if count[f.kind]++; count[f.kind] == 1 {
			names = append(names, f.kind)
		}
	}
	slices.Sort(names)
	for i, n := range names {
		names[i] = fmt.Sprintf("%d %s", count[n], n)
	}
	return strings.Join(names, ", ")
}

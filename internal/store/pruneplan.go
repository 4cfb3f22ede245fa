package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/content"
)

// What is kept when nobody says otherwise.
const (
	DefaultPruneKeep    = 10
	DefaultPruneHistory = 90 * 24 * time.Hour
	DefaultPruneChanges = 20
)

// PruneOptions say what is kept beside what is in use.
type PruneOptions struct {
	By      string
	Keep    int           // releases: so many with the highest versions, and so many of those that were published last
	History time.Duration // changes that are younger can be taken back; 0 is DefaultPruneHistory
	Changes int           // and so many of each environment, however old; 0 is DefaultPruneChanges
}

// PrunePlan is what a prune removes. MakePrunePlan makes it, ApplyPrune carries it out.
type PrunePlan struct {
	Releases    []string        `json:"releases"` // versions, lowest first
	Deltas      []DeltaKey      `json:"deltas"`
	Objects     []string        `json:"objects"` // hashes
	Generations []GenerationKey `json:"generations"`
	Layers      []LayerKey      `json:"layers"`
	Bytes       int64           `json:"bytes"` // of all their values
	Kept        []KeptRelease   `json:"kept"`  // lowest version first

	options PruneOptions
	now     time.Time
	sizes   map[string]int64 // of each value, by its key
}

// GenerationKey names a generation of an environment's data.
type GenerationKey struct {
	Environment string           `json:"environment"`
	Number      agent.Generation `json:"number"`
}

// LayerKey names a layer of an environment's data.
type LayerKey struct {
	Environment string `json:"environment"`
	Digest      string `json:"digest"`
}

// KeptRelease is a release that stays, and one reason for it.
type KeptRelease struct {
	Version string `json:"version"`
	Why     string `json:"why"`
}

// Empty reports whether there is nothing to remove.
func (p PrunePlan) Empty() bool {
	return len(p.Releases)+len(p.Deltas)+len(p.Objects)+len(p.Generations)+len(p.Layers) == 0
}

// stock is everything that a prune looks at, as it was read.
type stock struct {
	releases []SignedRelease // in the order of versions
	deltas   []DeltaKey
	agents   []SignedAgent
	objects  []string
	fleets   []fleetStock
}

// fleetStock is the part of one environment.
type fleetStock struct {
	name        string
	uses        []use    // that have nothing to do with its history
	history     []Change // newest first
	generations []hieradata.Generation
	layers      []string // digests
}

// use is a target that somebody needs, and who.
type use struct {
	target agent.Target
	why    string
}

// filled puts defaults where nothing was said.
func (o PruneOptions) filled() (PruneOptions, error) {
	if o.Keep < 0 || o.History < 0 || o.Changes < 0 {
		return o, errors.New("cannot keep less than nothing\ngive numbers and times that are not below 0")
	}
	if o.History == 0 {
		o.History = DefaultPruneHistory
	}
	if o.Changes == 0 {
		o.Changes = DefaultPruneChanges
	}
	return o, nil
}

// planPrune decides what goes: whatever nobody who is asked needs. References tells which objects a release's base takes;
// its error ends the plan, as nothing may be removed that could not be looked into.
func planPrune(st stock, o PruneOptions, now time.Time, references func(content.Record) ([]content.Object, error)) (PrunePlan, error) {
	p := PrunePlan{options: o, now: now}
	why := map[string]string{} // of each version that stays
	keep := func(version, reason string) {
		if _, known := why[version]; version != "" && !known {
			why[version] = reason
		}
	}
	for _, f := range st.fleets {
		data := map[agent.Generation]bool{}
		for _, u := range f.needed(o, now) {
			keep(u.target.Release, u.why)
			data[u.target.Data] = true
		}
		p.planData(f, data)
	}
	for i, r := range newest(st.releases, o.Keep) {
		keep(r.Version, fmt.Sprintf("it is %s of the highest versions", ordinal(i)))
	}
	for i, r := range newest(byTime(st.releases), o.Keep) {
		keep(r.Version, fmt.Sprintf("it is %s of those that were published last", ordinal(i)))
	}
	var kept []SignedRelease
	for _, r := range st.releases {
		if reason, stays := why[r.Version]; stays {
			kept = append(kept, r)
			p.Kept = append(p.Kept, KeptRelease{r.Version, reason})
		} else {
			p.Releases = append(p.Releases, r.Version)
		}
	}
	p.planDeltas(st.deltas, kept)
	return p, p.planObjects(st, kept, references)
}

// needed lists what somebody in the environment needs: those who use it now, and whoever takes changes back.
func (f fleetStock) needed(o PruneOptions, now time.Time) []use {
	all := slices.Clone(f.uses)
	for i, c := range f.history {
		if i < o.Changes || now.Sub(c.At) <= o.History {
			why := fmt.Sprintf("epoch %d of %s can be taken back to it", c.Epoch, f.name)
			all = append(all, use{c.After, why}, use{c.Before, why})
		}
	}
	return all
}

// planData keeps the generations that are needed and the newest one, from which the next would be told, with their layers.
func (p *PrunePlan) planData(f fleetStock, needed map[agent.Generation]bool) {
	last := agent.Generation(0)
	for _, g := range f.generations {
		last = max(last, agent.Generation(g.Number))
	}
	layers := map[string]bool{}
	for _, g := range f.generations {
		if n := agent.Generation(g.Number); n != last && !needed[n] {
			p.Generations = append(p.Generations, GenerationKey{f.name, n})
			continue
		}
		for _, digest := range g.Layers {
			layers[digest] = true
		}
	}
	for _, digest := range f.layers {
		if !layers[digest] {
			p.Layers = append(p.Layers, LayerKey{f.name, digest})
		}
	}
}

// planDeltas keeps, of each line, what leads from the lowest base or release that stays to the highest release that does.
func (p *PrunePlan) planDeltas(deltas []DeltaKey, kept []SignedRelease) {
	type span struct{ low, high int64 }
	lines := map[string]span{}
	for _, r := range kept {
		c := r.Content.Chain
		s, known := lines[c.Line]
		if !known {
			s = span{c.Seq, c.Seq}
		}
		lines[c.Line] = span{min(s.low, c.Seq, r.Content.Base.Seq), max(s.high, c.Seq)}
	}
	for _, d := range deltas {
		if s, known := lines[d.Line]; !known || d.Seq <= s.low || d.Seq > s.high {
			p.Deltas = append(p.Deltas, d)
		}
	}
}

// planObjects keeps what the bases of the releases that stay consist of, and the programs of all agents.
func (p *PrunePlan) planObjects(st stock, kept []SignedRelease, references func(content.Record) ([]content.Object, error)) error {
	needed, looked := map[string]bool{}, map[string]bool{}
	for _, r := range kept {
		index := r.Content.Base.Index.Hash
		if looked[index] {
			continue // releases share bases
		}
		looked[index] = true
		referenced, err := references(r.Content)
		if err != nil {
			return fmt.Errorf("cannot tell what release %s needs: %w", r.Version, err)
		}
		for _, o := range referenced {
			needed[o.Hash] = true
		}
	}
	for _, r := range st.agents {
		for _, b := range r.Platforms {
			for _, c := range b.Chunks {
				needed[c.Hash] = true
			}
		}
	}
	for _, hash := range st.objects {
		if !needed[hash] {
			p.Objects = append(p.Objects, hash)
		}
	}
	return nil
}

// newest returns the last n, the very last first.
func newest(all []SignedRelease, n int) []SignedRelease {
	last := slices.Clone(all[max(0, len(all)-n):])
	slices.Reverse(last)
	return last
}

func byTime(all []SignedRelease) []SignedRelease {
	return slices.SortedStableFunc(slices.Values(all), func(a, b SignedRelease) int { return a.At.Compare(b.At) })
}

// ordinal is how a place in a list reads, from 0.
func ordinal(i int) string {
	if i == 0 {
		return "the first"
	}
	return fmt.Sprintf("number %d", i+1)
}

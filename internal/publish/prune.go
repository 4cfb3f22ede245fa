package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/publish/prune"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// The defaults of PruneOptions.
const (
	DefaultPruneKeep    = 10
	DefaultPruneHistory = 90 * 24 * time.Hour
	DefaultPruneChanges = 20
)

// PruneOptions select what to keep in addition to the values in use.
type PruneOptions struct {
	By      string
	Keep    int           // of each repository, this many releases with the highest versions, and this many of the most recently published
	History time.Duration // younger changes can be rolled back, and younger live data stays; 0 is DefaultPruneHistory
	Changes int           // this many changes per environment can be rolled back, however old; 0 is DefaultPruneChanges
}

// PrunePlan lists the values that a prune removes. PlanPrune creates it, ApplyPrune executes it.
type PrunePlan struct {
	prune.PruneSet
	Bytes int64         `json:"bytes"` // of all their values
	Kept  []KeptRelease `json:"kept"`  // lowest version first

	options PruneOptions
	now     time.Time
	sizes   map[string]int64 // by key
}

// KeptReason is the reason to keep a release.
type KeptReason string

// The reasons. Releases in use have a prune.UseKind: desired, assigned, enforced, last_good, next, tried.
const (
	KeptRollback KeptReason = "rollback" // the change with this epoch can be rolled back to it
	KeptHighest  KeptReason = "highest"  // its place among the highest versions
	KeptLatest   KeptReason = "latest"   // its place among the most recently published releases
)

// KeptRelease is a release to keep, with one reason.
type KeptRelease struct {
	Version     string      `json:"version"`
	Reason      KeptReason  `json:"reason"`
	Environment string      `json:"environment,omitempty"`
	Scope       string      `json:"scope,omitempty"` // all nodes, role R or node N
	Epoch       model.Epoch `json:"epoch,omitempty"`
	Place       int         `json:"place,omitempty"` // from 1
}

// String returns the reason as a sentence.
func (k KeptRelease) String() string {
	switch k.Reason {
	case KeptReason(prune.UseDesired):
		return fmt.Sprintf("it is the target of %s in %s", k.Scope, k.Environment)
	case KeptReason(prune.UseAssigned):
		return fmt.Sprintf("a rollout assigned it to %s of %s", k.Scope, k.Environment)
	case KeptReason(prune.UseEnforced):
		return fmt.Sprintf("%s of %s enforces it", k.Scope, k.Environment)
	case KeptReason(prune.UseLastGood):
		return fmt.Sprintf("it is the last good release of %s of %s", k.Scope, k.Environment)
	case KeptReason(prune.UseNext):
		return fmt.Sprintf("%s of %s is about to take it", k.Scope, k.Environment)
	case KeptReason(prune.UseTried):
		return fmt.Sprintf("%s of %s tries it", k.Scope, k.Environment)
	case KeptRollback:
		return fmt.Sprintf("epoch %d of %s can be rolled back to it", k.Epoch, k.Environment)
	case KeptHighest:
		return fmt.Sprintf("number %d of the highest versions", k.Place)
	case KeptLatest:
		return fmt.Sprintf("number %d of the releases published last", k.Place)
	}
	return string(k.Reason)
}

// Empty reports whether the plan removes nothing.
func (p PrunePlan) Empty() bool {
	return len(p.Releases)+len(p.Deltas)+len(p.Objects)+len(p.Generations)+len(p.Layers) == 0
}

// PlanPrune finds unused values. It removes nothing. For an unreadable value it returns an error with the key, because
// the values that it uses are unknown.
func PlanPrune(ctx context.Context, s *etcd.DB, o PruneOptions, now time.Time) (PrunePlan, error) {
	fail := func(err error) (PrunePlan, error) { return PrunePlan{}, fmt.Errorf("cannot plan a prune: %w", err) }
	o, err := o.filled()
	if err != nil {
		return fail(err)
	}
	p, _, err := readAndPlan(ctx, s, o, now)
	if err != nil {
		return fail(err)
	}
	if p.sizes, err = prune.In(s).PruneSizes(ctx, p.PruneSet); err != nil {
		return fail(err)
	}
	for _, size := range p.sizes {
		p.Bytes += size
	}
	return p, nil
}

func readAndPlan(ctx context.Context, s *etcd.DB, o PruneOptions, now time.Time) (PrunePlan, prune.PruneFacts, error) {
	facts, err := prune.In(s).PruneFacts(ctx)
	if err != nil {
		return PrunePlan{}, facts, err
	}
	p, err := planPrune(facts, o, now, func(r content.Record) ([]content.Object, error) { return content.References(ctx, release.In(s), r) })
	return p, facts, err
}

// ApplyPrune removes the values of the plan that are still unused, and compacts etcd. It returns the size of the
// removed values, also with an error. It blocks publishing, but not promotions and rollbacks.
func ApplyPrune(ctx context.Context, s *etcd.DB, plan PrunePlan) (freed int64, err error) {
	under, err := prune.In(s).BeginPrune(ctx, plan.options.By)
	if err != nil {
		return 0, err
	}
	err = retry(func() error { // a new target may use a release of the plan
		fresh, facts, err := readAndPlan(ctx, s, plan.options, plan.now)
		if err != nil {
			return err
		}
		return under.Remove(ctx, both(plan.PruneSet, fresh.PruneSet), facts, func(key string) { freed += plan.sizes[key] })
	})
	err = errors.Join(err, under.Close())
	if freed > 0 {
		err = errors.Join(err, cluster.In(s).Compact(ctx))
	}
	if err != nil {
		return freed, fmt.Errorf("cannot complete the prune: %w", err)
	}
	return freed, nil
}

// both returns the values that are in two sets.
func both(a, b prune.PruneSet) prune.PruneSet {
	return prune.PruneSet{
		Releases: common(a.Releases, b.Releases), Deltas: common(a.Deltas, b.Deltas), Objects: common(a.Objects, b.Objects),
		Generations: common(a.Generations, b.Generations), Layers: common(a.Layers, b.Layers),
	}
}

func common[T comparable](a, b []T) []T {
	in := map[T]bool{}
	for _, v := range b {
		in[v] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(v T) bool { return !in[v] })
}

// filled replaces zeros by defaults.
func (o PruneOptions) filled() (PruneOptions, error) {
	if o.Keep < 0 || o.History < 0 || o.Changes < 0 {
		return o, errors.New("negative numbers or times are not allowed")
	}
	if o.History == 0 {
		o.History = DefaultPruneHistory
	}
	if o.Changes == 0 {
		o.Changes = DefaultPruneChanges
	}
	return o, nil
}

// planPrune selects the values to remove. References returns the objects of a release's base; its error stops the plan.
func planPrune(f prune.PruneFacts, o PruneOptions, now time.Time, references func(content.Record) ([]content.Object, error)) (PrunePlan, error) {
	p := PrunePlan{options: o, now: now, Kept: []KeptRelease{}, PruneSet: prune.PruneSet{
		Releases: []string{}, Deltas: []release.DeltaKey{}, Objects: []string{}, Generations: []prune.GenerationKey{}, Layers: []prune.LayerKey{},
	}}
	kept := map[string]KeptRelease{} // by version
	keep := func(k KeptRelease) {
		if _, known := kept[k.Version]; k.Version != "" && !known {
			kept[k.Version] = k
		}
	}
	for _, e := range f.Environments {
		data := map[model.Generation]bool{}
		for _, u := range needed(e, o, now) {
			keep(u.KeptRelease)
			data[u.data] = true
		}
		p.planData(e, data)
	}
	for _, all := range byRepository(f.Releases) {
		for i, r := range newest(all, o.Keep) {
			keep(KeptRelease{Version: r.Version, Reason: KeptHighest, Place: i + 1})
		}
		for i, r := range newest(byTime(all), o.Keep) {
			keep(KeptRelease{Version: r.Version, Reason: KeptLatest, Place: i + 1})
		}
	}
	var stay []release.SignedRelease
	for _, r := range f.Releases {
		if k, stays := kept[r.Version]; stays {
			stay = append(stay, r)
			p.Kept = append(p.Kept, k)
		} else {
			p.Releases = append(p.Releases, r.Version)
		}
	}
	p.planDeltas(f.Deltas, stay)
	return p, p.planObjects(f, stay, references)
}

// need is a target in use, with the reason to keep its release.
type need struct {
	KeptRelease
	data model.Generation
}

// needed lists the targets in use and the targets of possible rollbacks.
func needed(e prune.PruneEnvironment, o PruneOptions, now time.Time) []need {
	var all []need
	for _, u := range e.Uses {
		all = append(all, need{KeptRelease{Version: u.Target.Release, Reason: KeptReason(u.Kind), Environment: e.Name, Scope: u.Scope.String()}, u.Target.Data})
	}
	for i, c := range e.History {
		if i < o.Changes || now.Sub(c.At) <= o.History {
			for _, t := range []model.Target{c.After, c.Before} {
				all = append(all, need{KeptRelease{Version: t.Release, Reason: KeptRollback, Environment: e.Name, Epoch: c.Epoch}, t.Data})
			}
			if c.Rollout != nil {
				all = append(all, need{data: c.Rollout.Target.Data}) // its rollout can start again
			}
		}
	}
	return all
}

// planData keeps the needed and the young generations with their layers, and the newest generation, which determines the next number.
// The history does not name a generation whose rollout never completed.
func (p *PrunePlan) planData(e prune.PruneEnvironment, needed map[model.Generation]bool) {
	last := model.Generation(0)
	for _, g := range e.Generations {
		last = max(last, model.Generation(g.Number))
	}
	layers := map[string]bool{}
	for _, g := range e.Generations {
		if n := model.Generation(g.Number); n != last && !needed[n] && p.now.Sub(g.At) > p.options.History {
			p.Generations = append(p.Generations, prune.GenerationKey{Environment: e.Name, Number: n})
			continue
		}
		for _, digest := range g.Layers {
			layers[digest] = true
		}
	}
	for _, digest := range e.Layers {
		if !layers[digest] {
			p.Layers = append(p.Layers, prune.LayerKey{Environment: e.Name, Digest: digest})
		}
	}
}

// planDeltas keeps the deltas of each line from its lowest kept base or release to its highest kept release.
func (p *PrunePlan) planDeltas(deltas []release.DeltaKey, kept []release.SignedRelease) {
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

// planObjects keeps the objects in the bases of kept releases and in all programs of the agent.
func (p *PrunePlan) planObjects(f prune.PruneFacts, kept []release.SignedRelease, references func(content.Record) ([]content.Object, error)) error {
	needed, looked := map[string]bool{}, map[string]bool{}
	for _, r := range kept {
		index := r.Content.Base.Index.Hash
		if looked[index] {
			continue // releases share bases
		}
		looked[index] = true
		referenced, err := references(r.Content)
		if err != nil {
			return fmt.Errorf("cannot list the objects of release %s: %w", r.Version, err)
		}
		for _, o := range referenced {
			needed[o.Hash] = true
		}
	}
	for _, r := range f.Agents {
		for _, b := range r.Platforms {
			for _, c := range b.Chunks {
				needed[c.Hash] = true
			}
		}
	}
	for _, hash := range f.Objects {
		if !needed[hash] {
			p.Objects = append(p.Objects, hash)
		}
	}
	return nil
}

// newest returns the last n releases, the newest first.
func newest(all []release.SignedRelease, n int) []release.SignedRelease {
	last := slices.Clone(all[max(0, len(all)-n):])
	slices.Reverse(last)
	return last
}

// byRepository groups releases. One that is of two groups, as a repository that got an environment, is in the first.
func byRepository(all []release.SignedRelease) (groups [][]release.SignedRelease) {
	for _, r := range all {
		i := slices.IndexFunc(groups, func(g []release.SignedRelease) bool { return g[len(g)-1].Beside(r.Release) })
		if i < 0 {
			groups, i = append(groups, nil), len(groups)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

func byTime(all []release.SignedRelease) []release.SignedRelease {
	return slices.SortedStableFunc(slices.Values(all), func(a, b release.SignedRelease) int { return a.At.Compare(b.At) })
}

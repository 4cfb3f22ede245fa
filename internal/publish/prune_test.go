package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/publish/prune"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

var planned = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// at returns a release of line 1.0.0 at a position, with its base at another, published some days before planned.
func at(version string, seq, base int64, days int) release.SignedRelease {
	r := release.Release{Version: version, At: planned.AddDate(0, 0, -days)}
	r.Content.Chain = content.Chain{Line: "1.0.0", Seq: seq}
	r.Content.Base = content.Base{Seq: base, Index: content.Object{Hash: fmt.Sprintf("index%d", base)}}
	return release.SignedRelease{Release: r}
}

// twoObjects returns the objects of a base: its index, and a pack shared with the next base.
func twoObjects(r content.Record) ([]content.Object, error) {
	return []content.Object{{Hash: r.Base.Index.Hash}, {Hash: fmt.Sprintf("pack%d", r.Base.Seq/10)}}, nil
}

func to(release string, data model.Generation) model.Target {
	return model.Target{Release: release, Data: data}
}

func removed(p PrunePlan) string {
	var all []string
	all = append(all, p.Releases...)
	for _, d := range p.Deltas {
		all = append(all, fmt.Sprintf("%s/%d", d.Line, d.Seq))
	}
	all = append(all, p.Objects...)
	for _, g := range p.Generations {
		all = append(all, fmt.Sprintf("%s:%d", g.Environment, g.Number))
	}
	for _, l := range p.Layers {
		all = append(all, l.Environment+":"+l.Digest)
	}
	return strings.Join(all, " ")
}

// A prune that removes needed values is noticed only in an emergency, when a rollback fails.
func TestPrunePlanKeepsNeededReleases(t *testing.T) {
	t.Parallel()
	releases := []release.SignedRelease{at("1.0.0", 0, 0, 50), at("1.1.0", 1, 0, 40), at("1.2.0", 2, 0, 30), at("1.3.0", 3, 3, 20), at("1.4.0", 4, 3, 10)}
	deltas := []release.DeltaKey{{Line: "1.0.0", Seq: 1}, {Line: "1.0.0", Seq: 2}, {Line: "1.0.0", Seq: 3}, {Line: "1.0.0", Seq: 4}, {Line: "1.0.0", Seq: 5}, {Line: "gone", Seq: 1}}
	objects := []string{"index0", "index3", "pack0", "stray"}
	generation := func(n int64, layer string) hieradata.Generation {
		return hieradata.Generation{Number: n, Layers: map[hieradata.Layer]string{hieradata.Common: layer}}
	}
	data := prune.PruneEnvironment{Name: "dev", Generations: []hieradata.Generation{generation(1, "a"), generation(2, "b"), generation(3, "a")}, Layers: []string{"a", "b", "c"}}
	with := func(f prune.PruneEnvironment, uses []prune.Use, history ...targets.Change) []prune.PruneEnvironment {
		f.Uses, f.History = uses, history
		return []prune.PruneEnvironment{f}
	}
	old := func(epoch model.Epoch, days int, before, after model.Target) targets.Change {
		return targets.Change{Epoch: epoch, Before: before, After: after, At: planned.AddDate(0, 0, -days)}
	}
	rolled := targets.Change{Epoch: 2, Rollout: &targets.Started{Target: to("", 1)}, At: planned.AddDate(-1, 0, 0)}
	young := data
	young.Generations = slices.Clone(data.Generations)
	young.Generations[1].At = planned.Add(-time.Hour)
	few := PruneOptions{Changes: 1, History: 24 * time.Hour}
	for _, c := range []struct {
		name   string
		fleets []prune.PruneEnvironment
		o      PruneOptions
		want   string
	}{
		{"no release is needed", nil, few,
			"1.0.0 1.1.0 1.2.0 1.3.0 1.4.0 1.0.0/1 1.0.0/2 1.0.0/3 1.0.0/4 1.0.0/5 gone/1 index0 index3 pack0 stray"},
		{"the highest two", nil, PruneOptions{Keep: 2}, "1.0.0 1.1.0 1.2.0 1.0.0/1 1.0.0/2 1.0.0/3 1.0.0/5 gone/1 index0 stray"},
		{"a target, and deltas from its base on", with(prune.PruneEnvironment{Name: "dev"}, []prune.Use{{Target: to("1.2.0", 0)}}), PruneOptions{Keep: 1},
			"1.0.0 1.1.0 1.3.0 1.0.0/5 gone/1 stray"},
		{"a base that is not at the start of the line", with(prune.PruneEnvironment{Name: "dev"}, []prune.Use{{Target: to("1.4.0", 0)}}), few,
			"1.0.0 1.1.0 1.2.0 1.3.0 1.0.0/1 1.0.0/2 1.0.0/3 1.0.0/5 gone/1 index0 stray"},
		{"the newest change, however old", with(prune.PruneEnvironment{Name: "dev"}, nil, old(2, 400, to("1.3.0", 0), to("1.4.0", 0)), old(1, 401, to("1.0.0", 0), to("1.1.0", 0))), few,
			"1.0.0 1.1.0 1.2.0 1.0.0/1 1.0.0/2 1.0.0/3 1.0.0/5 gone/1 index0 stray"},
		{"young changes, however many", with(prune.PruneEnvironment{Name: "dev"}, nil, old(2, 1, to("1.3.0", 0), to("1.4.0", 0)), old(1, 2, to("", 0), to("1.2.0", 0))), PruneOptions{Changes: 1, History: 49 * time.Hour},
			"1.0.0 1.1.0 1.0.0/5 gone/1 stray"},
		{"what is not published", with(prune.PruneEnvironment{Name: "dev"}, []prune.Use{{Target: to("9.0.0", 0)}}), PruneOptions{Keep: 5}, "1.0.0/5 gone/1 stray"},
		{"the newest data, and its layers", with(data, nil), PruneOptions{Keep: 5}, "1.0.0/5 gone/1 stray dev:1 dev:2 dev:b dev:c"},
		{"data that a node runs, and that a rollback needs", with(data, []prune.Use{{Target: to("", 2)}}, old(1, 400, to("1.4.0", 1), model.Target{})), PruneOptions{Keep: 5, Changes: 1}, "1.0.0/5 gone/1 stray dev:c"},
		{"data of a rollout that was reverted", with(data, nil, rolled), PruneOptions{Keep: 5, Changes: 1}, "1.0.0/5 gone/1 stray dev:2 dev:b dev:c"},
		{"young data, which the history need not name", with(young, nil), PruneOptions{Keep: 5, History: time.Hour}, "1.0.0/5 gone/1 stray dev:1 dev:c"},
		{"data of another environment", append(with(data, nil), prune.PruneEnvironment{Name: "production", Uses: []prune.Use{{Target: to("", 2)}}}), PruneOptions{Keep: 5},
			"1.0.0/5 gone/1 stray dev:1 dev:2 dev:b dev:c"},
	} {
		p, err := planPrune(prune.PruneFacts{Releases: releases, Deltas: deltas, Objects: objects, Environments: c.fleets}, c.o, planned, twoObjects)
		if got := removed(p); err != nil || got != c.want {
			t.Errorf("%s: removes\n%s, %v, want\n%s", c.name, got, err, c.want)
		}
		if len(p.Kept)+len(p.Releases) != len(releases) {
			t.Errorf("%s: keeps %v", c.name, p.Kept)
		}
	}
}

// A correction of an old version is not among the highest versions and is not promoted yet.
func TestPrunePlanKeepsNewestReleases(t *testing.T) {
	t.Parallel()
	releases := []release.SignedRelease{at("1.0.0", 0, 0, 50), at("1.0.1", 5, 0, 0), at("1.1.0", 1, 0, 40), at("2.0.0", 2, 0, 30)}
	p, err := planPrune(prune.PruneFacts{Releases: releases}, PruneOptions{Keep: 1}, planned, twoObjects)
	if err != nil || strings.Join(p.Releases, " ") != "1.0.0 1.1.0" {
		t.Errorf("removes %v, %v", p.Releases, err)
	}
	want := []KeptRelease{{Version: "1.0.1", Reason: KeptLatest, Place: 1}, {Version: "2.0.0", Reason: KeptHighest, Place: 1}}
	if !slices.Equal(p.Kept, want) {
		t.Errorf("keeps %v, want %v", p.Kept, want)
	}
}

// If the index of a base is unreadable, its objects are unknown. The prune must then remove nothing.
func TestPrunePlanEndsWhereABaseCannotBeRead(t *testing.T) {
	t.Parallel()
	bad := errors.New("index0 is damaged")
	_, err := planPrune(prune.PruneFacts{Releases: []release.SignedRelease{at("1.0.0", 0, 0, 1)}, Objects: []string{"x"}}, PruneOptions{Keep: 1}, planned,
		func(content.Record) ([]content.Object, error) { return nil, bad })
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), "release 1.0.0") {
		t.Errorf("got %v", err)
	}
}

// Otherwise a zero would mean that no change can be rolled back.
func TestPruneOptionsHaveDefaults(t *testing.T) {
	t.Parallel()
	if o, err := (PruneOptions{}).filled(); err != nil || o.History != DefaultPruneHistory || o.Changes != DefaultPruneChanges {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, o := range []PruneOptions{{Keep: -1}, {History: -1}, {Changes: -1}} {
		if _, err := o.filled(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// A team that publishes often must not remove the releases of another one.
func TestPruneKeepsReleasesOfEachRepository(t *testing.T) {
	t.Parallel()
	of := func(version string, environments ...string) release.SignedRelease {
		r := at(version, 0, 0, 1)
		r.Environments = environments
		return r
	}
	all := []release.SignedRelease{of("0.1.0", "shop"), of("0.2.0", "shop"), of("1.0.0", "dev"), of("1.0.0+web", "dev"), of("2.0.0", "dev", "prod"), of("3.0.0+web", "web")}
	p, err := planPrune(prune.PruneFacts{Releases: all}, PruneOptions{Keep: 1}, planned, twoObjects)
	if got := strings.Join(p.Releases, " "); err != nil || got != "0.1.0 1.0.0 1.0.0+web" {
		t.Errorf("%s %v", got, err)
	}
}

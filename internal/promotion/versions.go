package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

// Version is one version of pulley-agent that is published, wanted or running.
type Version struct {
	Version    string            `json:"version"`
	Published  bool              `json:"published"`
	Platforms  []Platform        `json:"platforms"`
	Message    model.Prose       `json:"message"`
	Author     string            `json:"author"`
	At         *time.Time        `json:"at"`
	Signatures []trust.Signature `json:"signatures"`
	Nodes      int               `json:"nodes"` // number of nodes that last reported it
	Wanted     []Want            `json:"wanted"`
}

// Platform is one program of a version.
type Platform struct {
	Platform string `json:"platform"`
	SHA256   string `json:"sha256"`
	Size     int64  `json:"size"`
	Stored   int64  `json:"stored"`
}

// Want is the version that is wanted for one scope.
type Want struct {
	Environment string `json:"environment"`
	Scope       string `json:"scope"` // default, roles/R or nodes/N
	Version     string `json:"version"`
	Downgrade   bool   `json:"downgrade"`
	Of          Scope  `json:"-"`
}

func wants(ref model.Ref, w desired.AgentWish) []Want {
	all := []Want{}
	for _, c := range choices(w) {
		own, _ := w.Choice(c.Scope)
		all = append(all, Want{ref.String(), c.Scope.Segment("default"), own.Version, own.Downgrade, c.Scope})
	}
	return all
}

// Versions combines the published, wanted and running versions, the newest first.
func Versions(ctx context.Context, s *etcd.DB) ([]Version, error) {
	var problems []error
	published, err := release.In(s).Agents(ctx)
	if errors.As(err, new(*release.UnreadableReleases)) {
		problems = append(problems, err)
	} else if err != nil {
		return nil, err
	}
	byVersion := map[string]*Version{}
	of := func(version string) *Version {
		if byVersion[version] == nil {
			byVersion[version] = &Version{Version: version, Platforms: []Platform{}, Signatures: []trust.Signature{}, Wanted: []Want{}}
		}
		return byVersion[version]
	}
	for _, r := range published {
		v := of(r.Version)
		v.Published, v.Message, v.Author, v.At, v.Signatures = true, r.Message, r.Author, &r.At, trust.SignedBy(r.Signatures)
		for _, name := range slices.Sorted(maps.Keys(r.Platforms)) {
			p := r.Platforms[name]
			v.Platforms = append(v.Platforms, Platform{name, p.SHA256, p.Size, p.Stored()})
		}
	}
	names, err := specs.In(s).List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		w, _, err := fleet.In(s).AgentWish(ctx, ref)
		var f fleet.FleetState
		if err == nil {
			f, err = fleet.In(s).State(ctx, ref)
		}
		if err != nil { // the agents of the others are shown
			problems = append(problems, fmt.Errorf("cannot read the agents of %s: %w", ref, err))
			continue
		}
		for _, want := range wants(ref, w) {
			v := of(want.Version)
			v.Wanted = append(v.Wanted, want)
		}
		for _, st := range f.Statuses {
			of(release.PlainVersion(st.Version)).Nodes++
		}
	}
	all := make([]Version, 0, len(byVersion))
	for _, v := range byVersion {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b Version) int { return release.CompareVersions(b.Version, a.Version) })
	return all, errors.Join(problems...)
}

// FleetVersions are the wanted and the running agents of an environment.
type FleetVersions struct {
	Environment string        `json:"environment"`
	Wanted      []Want        `json:"wanted"`
	By          string        `json:"by"`
	Why         model.Prose   `json:"why"`
	At          *time.Time    `json:"at"`
	Nodes       []NodeVersion `json:"nodes"`
}

// NodeVersion is the state of one node's agent, from its last report.
type NodeVersion struct {
	Node    string             `json:"node"`
	Runs    string             `json:"runs"`   // "" before the first report
	Wanted  string             `json:"wanted"` // "" if none is wanted
	Phase   model.UpgradePhase `json:"phase"`  // "" if it runs the wanted version
	Problem model.Problem      `json:"problem,omitzero"`
}

// VersionsOf returns the wanted and the running agents of an environment.
func VersionsOf(ctx context.Context, s *etcd.DB, ref model.Ref) (FleetVersions, error) {
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return FleetVersions{}, err
	}
	w, _, err := fleet.In(s).AgentWish(ctx, ref)
	if err != nil {
		return FleetVersions{}, err
	}
	f, err := fleet.In(s).State(ctx, ref)
	if err != nil {
		return FleetVersions{}, err
	}
	v := FleetVersions{Environment: ref.String(), By: w.By, Why: w.Why, Wanted: wants(ref, w), Nodes: []NodeVersion{}}
	if !w.At.IsZero() {
		v.At = &w.At
	}
	for _, name := range slices.SortedFunc(maps.Keys(f.Known()), fleet.CompareNatural) {
		v.Nodes = append(v.Nodes, versionOf(name, f))
	}
	return v, nil
}

func versionOf(name string, f fleet.FleetState) NodeVersion {
	st, reported := f.Statuses[name]
	v := NodeVersion{Node: name, Runs: release.PlainVersion(st.Version)}
	v.Wanted = f.Desired(cmp.Or(f.Hosts[name].Role, st.Role), name).WantedAgent().Version
	switch {
	case v.Wanted == "" || !reported:
	case st.Agent != nil && st.Agent.Wanted == v.Wanted:
		v.Phase, v.Problem = st.Agent.Phase, st.Agent.Problem
	case v.Runs != v.Wanted:
		v.Phase = model.UpgradeWaiting
	}
	return v
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

func newAgents(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "agents", Short: "Publish and promote versions of pulley-agent",
		Args: arguments(0, 0, "takes one of its verbs"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newAgentsPublish(o), newAgentsList(o), newAgentsShow(o), newAgentsPromote(o), newAgentsUnpin(o), newAgentsRetry(o))
	return cmd
}

// listedAgent is one version of pulley-agent in the JSON output.
type listedAgent struct {
	Version    string           `json:"version"`
	Published  bool             `json:"published"`
	Platforms  []listedPlatform `json:"platforms"`
	Message    string           `json:"message"`
	Author     string           `json:"author"`
	At         *time.Time       `json:"at"`
	Signatures []signature      `json:"signatures"`
	Nodes      int              `json:"nodes"`  // number of nodes that last reported it
	Wanted     []string         `json:"wanted"` // scopes that want it: "everybody in dev"
}

type listedPlatform struct {
	Platform string `json:"platform"`
	SHA256   string `json:"sha256"`
	Size     int64  `json:"size"`
	Stored   int64  `json:"stored"`
}

func newAgentsList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the versions of pulley-agent, and how many nodes want and run each",
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withStore(c, o.agents) },
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) agents(ctx context.Context, s *store.Store) error {
	all, err := listAgents(ctx, s)
	if err != nil {
		return err
	}
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		if len(all) == 0 {
			fmt.Fprintln(o.env.Stdout, "no agent is published; `pulley agents publish FILE` publishes one")
			return nil
		}
		t.Row("VERSION", "PLATFORMS", "STORED", "SIGNED", "NODES", "WANTED BY", "PUBLISHED", "BY", "MESSAGE")
		for _, a := range all {
			var platforms []string
			var stored int64
			for _, p := range a.Platforms {
				platforms, stored = append(platforms, p.Platform), stored+p.Stored
			}
			size, signed, since := "", "", "not published"
			if a.Published {
				size, signed, since = cli.Bytes(stored), "no", cli.Ago(o.env.Now(), *a.At)
			}
			if len(a.Signatures) > 0 {
				signed = "yes"
			}
			t.Row(a.Version, strings.Join(platforms, " "), size, signed, strconv.Itoa(a.Nodes), strings.Join(a.Wanted, ", "), since, a.Author, a.Message)
		}
		return nil
	})
}

// listAgents combines the published, wanted and running versions, newest first.
func listAgents(ctx context.Context, s *store.Store) ([]listedAgent, error) {
	published, err := s.Releases.Agents(ctx)
	if err != nil {
		return nil, err
	}
	byVersion := map[string]*listedAgent{}
	of := func(version string) *listedAgent {
		if byVersion[version] == nil {
			byVersion[version] = &listedAgent{Version: version, Platforms: []listedPlatform{}, Signatures: []signature{}, Wanted: []string{}}
		}
		return byVersion[version]
	}
	for _, r := range published {
		a := of(r.Version)
		a.Published, a.Message, a.Author, a.At, a.Signatures = true, string(r.Message), r.Author, &r.At, signaturesOf(r.Signatures)
		for _, name := range slices.Sorted(maps.Keys(r.Platforms)) {
			p := r.Platforms[name]
			a.Platforms = append(a.Platforms, listedPlatform{name, p.SHA256, p.Size, p.Stored()})
		}
	}
	names, err := s.Environments.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			return nil, err
		}
		w, _, err := s.Fleet.AgentWish(ctx, ref)
		if err != nil {
			return nil, err
		}
		for _, c := range change.Choices(w) {
			a := of(c.Version)
			a.Wanted = append(a.Wanted, c.Scope.String()+" in "+name)
		}
		f, err := s.Fleet.State(ctx, ref)
		if err != nil {
			return nil, err
		}
		for _, st := range f.Statuses {
			of(publish.PlainVersion(st.Version)).Nodes++
		}
	}
	all := make([]listedAgent, 0, len(byVersion))
	for _, a := range byVersion {
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b listedAgent) int { return store.CompareVersions(b.Version, a.Version) })
	return all, nil
}

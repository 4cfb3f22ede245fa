package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/publish"
	"pulley/internal/release"
)

// agentsCommand shows versions of the agent.
type agentsCommand struct{ *options }

func newAgents(o *options) *cobra.Command {
	return group("agents", "Publish and promote versions of pulley-agent", "",
		newAgentsPublish(o), newAgentsList(o), newAgentsShow(o), newAgentsPromote(o), newAgentsUnpin(o), newAgentsRetry(o))
}

func newAgentsList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the versions of pulley-agent, and how many nodes want and run each",
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withEtcd(c, agentsCommand{o}.agents) },
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o agentsCommand) agents(ctx context.Context, s *etcd.DB) error {
	all, unread := promotion.Versions(ctx, s)
	if unread != nil && len(all) == 0 {
		return unread
	}
	return errors.Join(o.out.Print(o.env, all, func(t *cli.Table) error {
		if len(all) == 0 {
			fmt.Fprintln(o.env.Stdout, "no agent is published; `pulley agents publish FILE` publishes one")
			return nil
		}
		t.Row("VERSION", "PLATFORMS", "STORED", "SIGNED", "NODES", "WANTED BY", "PUBLISHED", "BY", "MESSAGE")
		for _, a := range all {
			var platforms, wanted []string
			var stored int64
			for _, p := range a.Platforms {
				platforms, stored = append(platforms, p.Platform), stored+p.Stored
			}
			for _, w := range a.Wanted {
				wanted = append(wanted, w.Of.String()+" in "+w.Environment)
			}
			size, signed, since := "", "", "not published"
			if a.Published {
				size, signed, since = cli.Bytes(stored), "no", cli.Ago(o.env.Now(), *a.At)
			}
			if len(a.Signatures) > 0 {
				signed = "yes"
			}
			t.Row(a.Version, strings.Join(platforms, " "), size, signed, strconv.Itoa(a.Nodes), strings.Join(wanted, ", "), since, a.Author, string(a.Message))
		}
		return nil
	}), unread)
}

func newAgentsShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show -e ENVIRONMENT", Short: "Show the desired and the running agent of each node",
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.inFleet(c, agentsCommand{o}.showAgents) },
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o agentsCommand) showAgents(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	v, err := promotion.VersionsOf(ctx, s, ref)
	if err != nil {
		return err
	}
	return o.out.Print(o.env, v, func(t *cli.Table) error {
		if len(v.Wanted) == 0 {
			fmt.Fprintf(o.env.Stdout, "%s: every node keeps its version; to change it: `pulley agents promote VERSION -e %s`\n", ref, ref)
		}
		for _, w := range v.Wanted {
			fmt.Fprintf(o.env.Stdout, "wanted for %s: %s\n", w.Of, w.Version)
		}
		if v.At != nil {
			cli.Cleanf(o.env.Stdout, "last promotion: %s, by %s%s\n", cli.Ago(o.env.Now(), *v.At), v.By, because(string(v.Why)))
		}
		counts := map[model.UpgradePhase]int{}
		for _, n := range v.Nodes {
			counts[n.Phase]++
		}
		for _, phase := range slices.Sorted(maps.Keys(counts)) {
			if phase != "" {
				fmt.Fprintf(o.env.Stdout, "%s: %s\n", phase, cli.Count(counts[phase], "node"))
			}
		}
		t.Row("NODE", "RUNS", "WANTED", "PHASE", "PROBLEM")
		for _, n := range v.Nodes {
			t.Row(n.Node, n.Runs, n.Wanted, string(n.Phase), n.Problem.String())
		}
		return nil
	})
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

type agentsPublishOptions struct {
	*options
	version string
}

func newAgentsPublish(o *options) *cobra.Command {
	p := agentsPublishOptions{options: o}
	cmd := &cobra.Command{
		Use:   "publish FILE ...",
		Short: "Publish a version of pulley-agent, one program for each platform",
		Long: `publish stores one version of pulley-agent: one program for each platform. A published version never changes. Each file records
its platform. publish reads the version from the program for this machine: it runs that program with --version. Nodes do not
use the version before it is promoted.

EXIT STATUS
  0 published, or published already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 16, "takes the files of one version, one for each platform"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.sign.check(p.env); err != nil {
				return err
			}
			if p.version != "" {
				if _, err := release.ParseVersion(p.version); err != nil {
					return cli.Usagef("%v", err)
				}
			}
			programs, err := publish.ReadPrograms(c.Context(), args, p.version)
			if errors.Is(err, publish.ErrNoVersion) {
				return cli.Usagef("%v\ngive --version 1.4.0", err)
			}
			if err != nil {
				return err
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if o.dryRun {
					return p.preview(ctx, s, programs)
				}
				return p.publish(ctx, s, programs)
			})
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version, like 1.4.0 (default: that of the file that runs on this machine)")
	p.addMessage(cmd, "description")
	p.addDryRun(cmd)
	p.sign.add(cmd)
	return cmd
}

func (p *agentsPublishOptions) preview(ctx context.Context, s *etcd.DB, programs publish.Programs) error {
	there, err := publish.PublishedProgram(ctx, release.In(s), programs)
	switch {
	case err != nil:
		return err
	case there:
		fmt.Fprintf(p.env.Stdout, "agent %s is published already with these programs\n", programs.Version)
	default:
		fmt.Fprintf(p.env.Stdout, "would publish agent %s for %s, %s\n", programs.Version, cli.Count(len(programs.Files), "platform"), signedOrNot(p.sign.key(p.env) != nil))
	}
	return nil
}

func (p *agentsPublishOptions) publish(ctx context.Context, s *etcd.DB, programs publish.Programs) error {
	r, progress := p.reporter()
	defer progress.Done()
	done, err := publish.Program(ctx, release.In(s), programs, publish.Wish{
		Version: programs.Version, Message: p.message, By: p.env.User, At: p.env.Now(), Key: p.sign.key(p.env),
	}, r)
	if err != nil {
		return err
	}
	progress.Done()
	switch {
	case !done.Created:
		fmt.Fprintf(p.env.Stdout, "agent %s is published already with these programs%s\n", programs.Version, signedNow(done.Signed, done.SignedBy))
	default:
		fmt.Fprintf(p.env.Stdout, "agent %s is published for %s, %s in etcd\n%s\n", programs.Version,
			cli.Count(len(programs.Files), "platform"), cli.Bytes(done.Stored), signedOrNot(done.Signed))
	}
	return nil
}

func newAgentsPromote(o *options) *cobra.Command {
	var downgrade bool
	cmd := &cobra.Command{
		Use:   "promote VERSION -e ENVIRONMENT",
		Short: "Set the version of pulley-agent for an environment, a role or a node",
		Long: `promote sets the version that the nodes of the scope use. After a tick without other work, a node fetches and tests the new
version. The current version then supervises the new one for some ticks, and installs it if they succeed. If the new version
fails on a node, the node keeps its current version.

EXIT STATUS
  0 done, or set already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				done, err := promotion.PromoteAgent(ctx, s, ref, sc, args[0], downgrade, o.changing())
				if err != nil {
					return err
				}
				if !done.Made {
					fmt.Fprintf(o.env.Stdout, "agent %s is the version for %s in %s already\n", done.After, sc, ref)
					return nil
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: agent %s → %s; %s, each after a tick without other work\n",
					sc, ref, cmp.Or(done.Before, "any"), done.After, takers(done.Takes, "tries", "try"))
				for _, c := range done.Pinned {
					fmt.Fprintf(o.env.Stdout, "  %s keeps its own version %s; to remove it: `pulley agents unpin -e %s%s`\n", c.Scope, c.Version, ref, promotion.Flags(c.Scope))
				}
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "only the agent")
	cmd.Flags().BoolVar(&downgrade, "allow-downgrade", false, "permit nodes to replace a newer version by this one")
	o.addMessage(cmd, "reason")
	o.addDryRun(cmd)
	return cmd
}

func newAgentsUnpin(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpin -e ENVIRONMENT",
		Short: "Unset the wanted version of an environment, a role or a node",
		Args:  arguments(0, 0, "takes no arguments; give --role or --node"),
		RunE: func(c *cobra.Command, _ []string) error {
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				done, err := promotion.UnpinAgent(ctx, s, ref, sc, o.changing())
				switch {
				case err != nil:
					return err
				case !done.Made:
					fmt.Fprintf(o.env.Stdout, "%s in %s has no version of its own\n", sc, ref)
				default:
					fmt.Fprintf(o.env.Stdout, "%s in %s: agent %s → %s\n", sc, ref, done.Before, cmp.Or(done.After, "any"))
				}
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the version")
	o.addMessage(cmd, "reason")
	o.addDryRun(cmd)
	return cmd
}

func newAgentsRetry(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry -e ENVIRONMENT",
		Short: "Let nodes retry versions that failed on them",
		Args:  arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				if err := promotion.RetryAgent(ctx, s, ref, o.changing()); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "nodes of %s retry versions that failed on them\n", ref)
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.addMessage(cmd, "reason")
	o.addDryRun(cmd)
	return cmd
}

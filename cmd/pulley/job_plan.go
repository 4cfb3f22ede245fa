package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments/applications"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollouts"
)

// jobSelect are the flags that select the nodes of a job.
type jobSelect struct {
	selectFlags
	applications, instances []string
	catalog                 string
}

func (f *jobSelect) add(c *cobra.Command) {
	f.selectFlags.add(c)
	c.Flags().StringSliceVar(&f.applications, "application", nil, "only nodes of these applications, with commas: Lamp")
	c.Flags().StringSliceVar(&f.instances, "instance", nil, "only nodes of these instances of applications, with commas: app1, Lamp[app1]")
}

func (f *jobSelect) addCatalog(c *cobra.Command) {
	c.Flags().StringVar(&f.catalog, "site-catalog", "", "`FILE` with an environment catalog of Puppet, instead of the applications of the environment")
}

// addSkip adds the flag of a job that needs no healthy producers.
func (f *jobSelect) addSkip(c *cobra.Command, order *rollouts.JobOrder) {
	c.Flags().BoolVar(&order.SkipOutside, "skip-outside-check", false, "start also if what the nodes consume from other nodes is not healthy")
}

func (f *jobSelect) value() (sel rollouts.JobSelection, err error) {
	sel = rollouts.JobSelection{Applications: f.applications, Instances: f.instances}
	if sel.Selection, err = f.selectFlags.value(); err != nil || f.catalog == "" {
		return sel, err
	}
	data, err := bounded.ReadFile(f.catalog, applications.MaxCatalog)
	sel.Catalog = &rollouts.Catalog{File: f.catalog, Data: data}
	return sel, err
}

// jobOrder are the flags about the pace of a job.
type jobOrder struct {
	rollouts.JobOrder
	batch string
}

func (f *jobOrder) add(c *cobra.Command) {
	c.Flags().StringVar(&f.batch, "batch", "", "nodes of a group at a time, as `N or N%` (default: all)")
	c.Flags().IntVar(&f.Concurrency, "concurrency", rollout.JobConcurrency, "nodes at a time, also within a batch")
	cli.DurationVar(c.Flags(), &f.Deadline, "deadline", time.Hour, "time for one node")
}

func (f *jobOrder) check() error {
	if n, err := strconv.Atoi(strings.TrimSuffix(f.batch, "%")); f.batch != "" && (err != nil || n < 1 || strings.HasSuffix(f.batch, "%") && n > 100) {
		return cli.Usagef("--batch is a number of nodes, or a percentage up to 100%%: not %q", f.batch)
	}
	switch {
	case f.Concurrency < 1 || f.Concurrency > rollout.MaxJobConcurrency:
		return cli.Usagef("--concurrency is a number of nodes, from 1 to %d, not %d", rollout.MaxJobConcurrency, f.Concurrency)
	case f.Deadline < time.Minute:
		return cli.Usagef("--deadline is at least 1m, not %s", f.Deadline)
	case f.KeepWaiting < 0:
		return cli.Usagef("--keep-waiting is a duration such as 2h, not %s", f.KeepWaiting)
	}
	f.Batch = rollout.Share(f.batch)
	return nil
}

func newJobPlan(o *options) *cobra.Command {
	var order jobOrder
	var sel jobSelect
	graph := ""
	cmd := &cobra.Command{
		Use: "plan -e ENVIRONMENT", Short: "Show the groups in which a job would run nodes",
		Long: `plan shows the nodes of a job in groups: each node after those that produce what its components consume, and after the nodes of the roles
that its role comes after. The components are those of ` + "`applications:`" + ` of the environment file, or of --site-catalog. It also shows what the nodes consume
from nodes that are not selected, the nodes that could not run now, and how long the job takes by their last runs. It changes nothing.`,
		Example: `  pulley job plan -e production --application Lamp
  pulley job plan -e production --graph dot | dot -Tsvg > plan.svg`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			selection, err := sel.value()
			if err == nil {
				err = order.check()
			}
			if graph != "" && graph != "dot" && graph != "mermaid" {
				err = cli.Usagef("cannot draw as %q: give --graph dot or mermaid", graph)
			}
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				p, err := rollouts.PlanJob(ctx, s, ref, selection, order.JobOrder, o.env.Now())
				if err != nil {
					return err
				}
				switch graph {
				case "dot":
					p.Drawing().DOT(o.env.Stdout)
					return nil
				case "mermaid":
					p.Drawing().Mermaid(o.env.Stdout)
					return nil
				}
				return o.out.Print(o.env, p, func(*cli.Table) error {
					o.showJobPlan("job", p)
					return nil
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	order.add(cmd)
	sel.add(cmd)
	sel.addCatalog(cmd)
	cmd.Flags().StringVar(&graph, "graph", "", "print the graph for a program that draws it: dot (Graphviz) or mermaid")
	return cmd
}

// showJobPlan prints the groups of a job, and what an operator must know about them.
func (o *options) showJobPlan(noun string, p rollouts.JobPlan) {
	o.warn(p.Notes)
	out := o.env.Stdout
	of := cli.Count(p.Nodes, "node")
	if n := len(p.Applications); n > 0 && p.Managed() == p.Nodes {
		of = fmt.Sprintf("%s on %s", cli.Count(n, "application"), cli.Count(p.Nodes, "managed node"))
	} else if n > 0 {
		of += fmt.Sprintf(", and %s on %d of them", cli.Count(n, "application"), p.Managed())
	}
	fmt.Fprintf(out, "%s in %s: %s, in %s\n", noun, p.Environment, of, cli.Count(len(p.Groups), "group"))
	for _, application := range p.Applications {
		cli.Cleanf(out, "  %s\n", application)
	}
	for _, g := range p.Groups {
		fmt.Fprintf(out, "\ngroup %d\n", g.Number)
		for _, n := range g.Nodes {
			fmt.Fprintf(out, "  %s\n", n.Node)
			for _, name := range n.Does {
				cli.Cleanf(out, "    %s\n", name)
			}
		}
	}
	fmt.Fprintln(out)
	for i, need := range p.Outside {
		if i == 0 {
			fmt.Fprintln(out, "needed from nodes outside of the job:")
		}
		cli.Cleanf(out, "  %s: %s\n", need.Sentence(), need.State)
	}
	if len(p.Left) > 0 {
		fmt.Fprintf(out, "not selected, although they are of earlier groups and did not run: %s\n", nodeNames(p.Left))
	}
	for i, n := range p.NotReady {
		if i == 0 {
			fmt.Fprintln(out, "these nodes could not run now:")
		}
		cli.Cleanf(out, "  %s is %s: %s\n", n.Node, n.State, n.Why)
	}
	fmt.Fprintln(out, jobTime(p.Takes, p.Nodes))
	fmt.Fprintln(out, "until it ends, no node of it runs by its own schedule")
}

// jobTime returns how long a job takes.
func jobTime(t rollouts.JobTime, nodes int) string {
	text := ""
	switch likely := cli.Span(t.Likely.Round(time.Second)); {
	case t.Unknown == nodes:
		text = "no node has a run yet: nothing tells how long it takes"
	case t.Unknown > 0:
		text = fmt.Sprintf("it takes more than %s, by the last runs of %d of its nodes", likely, nodes-t.Unknown)
	default:
		text = fmt.Sprintf("it takes about %s, by the last runs of its nodes, plus up to 5m for each batch (%d), on nodes with cron", likely, t.Batches)
	}
	return text + "; at most " + cli.Duration(t.Most) + ", by their deadlines"
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/lookup"
	"pulley/internal/model"
)

func newDataLookup(o *options) *cobra.Command {
	var q lookup.Query
	var generation int64
	var noCompile bool
	cmd := &cobra.Command{
		Use: "lookup KEY --node NODE -e ENVIRONMENT", Short: "Show what Hiera gives to a node, from all its data",
		Long: `lookup runs Puppet's own lookup on this machine, with the node's release, live data, published facts and trusted extensions. It
shows what the node's Puppet will see with its desired target, or with --release and --data, before a promotion. Sensitive values
and secrets are redacted, and no secret is decrypted: the manifests see <secret> in its place. Puppet must be installed here; the node must have published its facts.

The code of the release runs on this machine as you: functions and backends of Hiera, and the manifests, so that their top-scope
variables have values. With --no-compile, the manifests do not run. Volatile facts have no value; an external node classifier's
answer is not used.

EXIT STATUS
  0 the key has a value; 1 it has none, or failed; 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley data lookup ntp::servers --node web1 -e production
  pulley data lookup ntp::servers --node web1 -e production --explain
  pulley data lookup ntp::servers --node web1 -e production --release 1.5.0`,
		Args: arguments(1, 1, "takes a key"),
		RunE: func(c *cobra.Command, args []string) error {
			q.Key, q.Generation, q.Compile = args[0], model.Generation(generation), !noCompile
			switch {
			case q.Node == "":
				return cli.Usagef("cannot look up %s without a node: give --node NODE", q.Key)
			case strings.HasPrefix(q.Key, "-"):
				return cli.Usagef("cannot look up %s: a key does not begin with a hyphen", q.Key)
			case generation < 0:
				return cli.Usagef("--data is the number of a generation, from 1")
			case q.Merge != "" && !lookup.Merges(q.Merge):
				return cli.Usagef("--merge is first, unique, hash or deep")
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				a, err := lookup.Run(ctx, s, ref, q)
				if err != nil {
					return err
				}
				if err := o.out.Print(o.env, a, func(t *cli.Table) error { return o.showAnswer(t, a) }); err != nil || a.Found {
					return err
				}
				hint := "give --explain to see where Hiera looked"
				if q.Explain {
					hint = "Puppet then uses the default of the class or of the lookup, if there is one"
				}
				return fmt.Errorf("cannot find %s for %s: no level of Hiera has it, with release %s and data %d\n%s", q.Key, q.Node, a.Release, a.Generation, hint)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&q.Node, "node", "", "the node")
	f.StringVar(&q.Merge, "merge", "", "merge strategy: first, unique, hash or deep, instead of that in lookup_options")
	f.BoolVar(&q.Explain, "explain", false, "show every place where Hiera looked")
	f.StringVar(&q.Release, "release", "", "version of a release, instead of the desired one")
	f.Int64Var(&generation, "data", 0, "generation of live data, instead of the desired one")
	f.BoolVar(&noCompile, "no-compile", false, "do not run the manifests of the release")
	o.out.AddFlags(f)
	return cmd
}

func (o *options) showAnswer(t *cli.Table, a lookup.Answer) error {
	if len(a.Places) > 0 {
		t.Row("LEVEL", "FILE", "RESULT", "VALUE")
		for _, p := range a.Places {
			level := p.Level
			if p.Result == "merged" {
				level = "merged"
			}
			t.Row(strings.Repeat("  ", p.Depth)+level, p.File, strings.ReplaceAll(p.Result, "_", " "), string(p.Value))
		}
	}
	if !a.Found {
		return nil
	}
	if len(a.Places) > 0 {
		t.Row("answer", "", "", string(a.Value))
		return nil
	}
	text, err := asYAML(a.Value)
	for line := range strings.Lines(text) {
		cli.Cleanf(o.env.Stdout, "%s\n", strings.TrimSuffix(line, "\n"))
	}
	return err
}

// asYAML returns JSON as YAML in block style, which shows the types of values.
func asYAML(raw json.RawMessage) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return "", fmt.Errorf("cannot show the value: %w", err)
	}
	block(&doc)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return "", fmt.Errorf("cannot show the value: %w", err)
	}
	return b.String(), nil
}

func block(n *yaml.Node) {
	n.Style = 0
	for _, inner := range n.Content {
		block(inner)
	}
}

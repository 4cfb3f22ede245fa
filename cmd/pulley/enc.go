package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/enc"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func newENC(o *options) *cobra.Command {
	var cache, unknown string
	cmd := &cobra.Command{
		Use: "enc NODE [-e ENVIRONMENT]", Short: "Answer a Puppet server's question for the classes of a node",
		Long: `enc is an external node classifier. It prints the classes and parameters that the environment file gives to a node, as YAML. Name it
in puppet.conf of the Puppet server, which adds the node's certname:

  [master]
  node_terminus = exec
  external_nodes = /usr/local/bin/pulley enc

Without an environment, enc searches all. It keeps each answer in a folder. If etcd does not answer within ` + enc.Patience.String() + `, enc prints the
kept answer, and names the problem on standard error. An answer never names an environment of Puppet.

For a name that no environment has, enc fails, and the server compiles no catalog. If the server has agents that are not in Pulley, also its own,
give --unknown empty: enc then answers without classes, and keeps this answer as any other.

EXIT STATUS
  0 answered; 1 no environment has such a node, or several, or failed; 2 wrong usage; 3 etcd unreachable, and no answer is kept`,
		Args: arguments(1, 1, "takes a node"),
		RunE: func(c *cobra.Command, args []string) error {
			if unknown != string(enc.Fail) && unknown != string(enc.Empty) {
				return cli.Usagef("cannot use --unknown %s: give one of %s, %s", quoted(unknown), enc.Fail, enc.Empty)
			}
			var ref model.Ref
			if o.fleet.Name != "" || o.env.Getenv("PULLEY_ENVIRONMENT") != "" || o.fleet.Default != "" || c.Flags().Changed("environment") {
				var err error
				if ref, err = o.fleet.Ref(o.env); err != nil {
					return err
				}
			}
			if dir := cacheDir(); cache == "" && dir != "" {
				cache = filepath.Join(dir, "enc")
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				a, err := enc.Cache(cache).Classify(ctx, s, ref, args[0], enc.Unknown(unknown))
				if err != nil {
					return err
				}
				if a.Etcd != nil {
					cli.Complain(o.env, program, fmt.Errorf("warning: this is the answer of %s: %w", a.Since.UTC().Format(time.RFC3339), a.Etcd))
				}
				if a.Unkept != nil {
					cli.Complain(o.env, program, fmt.Errorf("warning: cannot keep the answer: %w", a.Unkept))
				}
				_, err = o.env.Stdout.Write(a.Text)
				return err
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&cache, "cache", "", "`FOLDER` of the kept answers (default: pulley/enc in the user's cache folder)")
	cmd.Flags().StringVar(&unknown, "unknown", string(enc.Fail), "for a name that no environment has: fail or empty (no classes)")
	return cmd
}

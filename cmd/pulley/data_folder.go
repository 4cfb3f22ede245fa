package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func newDataImport(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "import DIR -e ENVIRONMENT", Short: "Make the live data that of a folder",
		Long: `import reads one file for each layer: common.yaml, environment.yaml, roles/ROLE.yaml, nodes/NODE.yaml and ATTRIBUTE/VALUE.yaml. It makes one
generation with these layers, and removes all others. A data file with another name is an error. A folder that import made already
changes nothing. ` + "`pulley data export`" + ` writes secrets encrypted, and import restores them in the same environment, under the same
key of the same layer. It refuses other secrets: their nodes could not decrypt them. ` + "`pulley serve`" + ` checks them, except in a dry run.

EXIT STATUS
  0 done, or the data is the same already; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are
  held or silent, 5 its time passed`,
		Args: arguments(1, 1, "takes a folder"),
	}
	d.addChange(cmd)
	d.addEncrypted(cmd)
	return d.ofAll(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		return d.change(ctx, s, ref, func() (data.Edited, error) {
			return data.Import(ctx, s, ref, args[0], d.encrypted, d.sealer, d.changing())
		})
	})
}

func newDataExport(o *options) *cobra.Command {
	var replace, forServer, watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "export DIR -e ENVIRONMENT", Short: "Write the live data into a folder",
		Long: `export writes one file for each layer, in the form that ` + "`pulley data import`" + ` reads. It changes no other file. It refuses to change a file, and
to leave a layer in the folder that the data does not have, unless --replace permits it. Secrets stay encrypted.

With --for-server, it writes each generation into a folder of its own in DIR, and points the link DIR/current to it: the hiera.yaml of a
Puppet server names the link. These folders have no secrets, because a Puppet server cannot decrypt them. With --watch, it follows the
data until it is stopped.`,
		Args: arguments(1, 1, "takes a folder"),
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().BoolVar(&replace, "replace", false, "overwrite files with other content, and remove layers that the data does not have")
	cmd.Flags().BoolVar(&forServer, "for-server", false, "write a folder for each generation, without secrets, and the link DIR/current for a Puppet server")
	cmd.Flags().BoolVar(&watch, "watch", false, "with --for-server: follow the data until stopped")
	cli.DurationVar(cmd.Flags(), &interval, "interval", 10*time.Second, "with --watch: time between two looks at the data")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case replace && forServer:
			return cli.Usagef("--for-server excludes --replace: each generation has a folder of its own")
		case watch && !forServer:
			return cli.Usagef("--watch is for --for-server")
		case interval < time.Second:
			return cli.Usagef("cannot look at the data every %s: give --interval at least 1s", interval)
		}
		return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
			if watch {
				data.Follow(ctx, s, ref, args[0], interval, o.serverData(ref))
				return nil
			}
			if forServer {
				d, err := data.ExportForServer(ctx, s, ref, args[0])
				if err == nil {
					o.serverData(ref)(d, nil)
				}
				return err
			}
			number, files, err := data.Export(ctx, s, ref, args[0], replace)
			if err == nil {
				fmt.Fprintf(o.env.Stdout, "data %d of %s: %s written to %s\n", number, ref, cli.Count(len(files), "layer"), cli.Clean(args[0]))
			}
			return err
		})
	}
	return cmd
}

// serverData prints the new results of exports for a server: data, keys that were left out, and errors.
func (o *options) serverData(ref model.Ref) func(data.ServerData, error) {
	var failed string
	printed := false
	return func(d data.ServerData, err error) {
		if text := fmt.Sprint(err); err != nil && text != failed {
			failed = text
			cli.Complain(o.env, program, err)
		}
		if err != nil || printed && !d.New && failed == "" {
			return
		}
		failed, printed = "", true
		cli.Cleanf(o.env.Stdout, "data %d of %s is in %s\n", d.Generation, ref, d.Folder)
		for _, key := range d.Secrets {
			cli.Complain(o.env, program, fmt.Errorf("warning: layer %s is a secret, and is not in the folder", key))
		}
	}
}

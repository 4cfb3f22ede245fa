package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/store"
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
	return d.ofAll(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		done, err := change.ImportData(ctx, s, ref, args[0], d.encrypted, d.sealer, d.changing())
		if err != nil {
			return err
		}
		return d.changed(ctx, s, ref, done)
	})
}

func newDataExport(o *options) *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use: "export DIR -e ENVIRONMENT", Short: "Write the live data into a folder",
		Long: `export writes one file for each layer, in the form that ` + "`pulley data import`" + ` reads. It changes no other file. It refuses to change a file, and
to leave a layer in the folder that the data does not have, unless --replace permits it. Secrets stay encrypted.`,
		Args: arguments(1, 1, "takes a folder"),
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().BoolVar(&replace, "replace", false, "overwrite files with other content, and remove layers that the data does not have")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
			number, files, err := change.ExportData(ctx, s, ref, args[0], replace)
			if err == nil {
				fmt.Fprintf(o.env.Stdout, "data %d of %s: %s written to %s\n", number, ref, cli.Count(len(files), "layer"), cli.Clean(args[0]))
			}
			return err
		})
	}
	return cmd
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyCheck(o *options) *cobra.Command {
	var files keyFiles
	var fleet cli.EnvironmentFlag
	var use string
	cmd := &cobra.Command{
		Use:   "check FILE -e ENVIRONMENT --signers FILE",
		Short: "Verify a signed record as a node does",
		Long: `check verifies a record as a node of the environment does with these lists. The signatures are in FILE.sig, as
` + "`pulley releases export`" + ` writes them, or in FILE itself after the record's line, as in etcd.

EXIT STATUS
  0 it is authentic, 1 it is not, 2 wrong usage`,
		Example: `  pulley releases export 1.4.0 --record record
  pulley key check record -e production --signers allowed_signers --revoked revoked_signers`,
		Args: arguments(1, 1, "takes the file of a signed record"),
		RunE: func(_ *cobra.Command, args []string) error {
			ns, known := map[string]trust.Namespace{"release": trust.Release, "data": trust.Data, "rollback": trust.Rollback, "agent": trust.Agent}[use]
			if !known {
				return cli.Usagef("cannot check a record as %s: give release, data, rollback or agent", quoted(use))
			}
			ref, err := fleet.Ref(o.env)
			if err != nil {
				return err
			}
			signers, err := files.read()
			if err != nil {
				return err
			}
			record, signatures, err := trust.ReadRecord(args[0])
			if err != nil {
				return err
			}
			by, err := signers.Verify(ns, ref.String(), record, signatures, o.env.Now())
			if err != nil {
				return fmt.Errorf("cannot trust %s in %s: %w", args[0], ref, err)
			}
			fmt.Fprintf(o.env.Stdout, "%s is authentic in %s: signed by %s\n", args[0], ref, by)
			return nil
		},
	}
	fleet.AddFlag(cmd.Flags())
	files.addSigners(cmd.Flags(), "")
	files.addRevoked(cmd.Flags(), " (default: none is)")
	cmd.Flags().StringVar(&use, "as", "release", "use of the record: release, data, rollback or agent")
	return cmd
}

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
		Short: "say whether a node would take a signed record for authentic, and why not",
		Long: `check judges a record as a node of the environment does with these lists. Its signatures are in FILE.sig, as
` + "`pulley releases export`" + ` writes them, or in FILE itself behind the record's line, as etcd has them.

EXIT STATUS
  0 it is authentic, 1 it is not, 2 wrong usage`,
		Example: `  pulley releases export 1.4.0 --record record
  pulley key check record -e production --signers allowed_signers --revoked revoked_signers`,
		Args: arguments(1, 1, "takes the file of a signed record"),
		RunE: func(_ *cobra.Command, args []string) error {
			ns, known := map[string]trust.Namespace{"release": trust.Release, "data": trust.Data, "rollback": trust.Rollback, "agent": trust.Agent}[use]
			if !known {
				return cli.Usagef("cannot check a record as %s: there are release, data, rollback and agent", quoted(use))
			}
			ref, err := fleet.Ref(o.env)
			if err != nil {
				return err
			}
			signers, _, err := files.read()
			if err != nil {
				return err
			}
			record, signatures, err := readRecord(args[0])
			if err != nil {
				return fmt.Errorf("cannot read the record: %w", err)
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
	cmd.Flags().StringVar(&use, "as", "release", "what it is: release, data, rollback or agent")
	return cmd
}

// readRecord reads a record and its signatures, from one file or two; it judges neither.
func readRecord(file string) (record, signatures []byte, err error) {
	value, err := readKeyFile(file)
	if err != nil {
		return nil, nil, err
	}
	record, signatures = trust.Split(value)
	if signatures == nil {
		signatures, err = readKeyFileToAdd(file + ".sig")
	}
	return record, signatures, err
}

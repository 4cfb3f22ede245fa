package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyExpire(o *options) *cobra.Command {
	var files keyFiles
	var at string
	cmd := &cobra.Command{
		Use:   "expire NAME|FINGERPRINT --at DATE --signers FILE",
		Short: "End the validity of a key at a date",
		Long: `expire sets the date in the list of allowed signers. After the date a node takes nothing new that only this key signed,
even if it was signed before; what the node enforces stays.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key expire alice --at 2027-01-31 --signers allowed_signers
  pulley key expire SHA256:… --at now --signers allowed_signers`,
		Args: arguments(1, 1, "takes a name or a fingerprint, as `pulley key list` shows them"),
		RunE: func(_ *cobra.Command, args []string) error {
			if at == "" || files.signers == "" {
				return cli.Usagef("give --at DATE and --signers FILE")
			}
			end, err := o.date("--at", at)
			if err != nil {
				return err
			}
			signer, err := trust.ExpireInFile(files.signers, args[0], end)
			if err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s of %s is valid until %s\nnext: copy %s to the nodes\n",
				signer.Fingerprint(), strings.Join(signer.Names(), ", "), end.Format(time.RFC3339), files.signers)
			return nil
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "last moment of its validity, as in 2027-01-31 or now")
	files.addSigners(cmd.Flags(), "")
	return cmd
}

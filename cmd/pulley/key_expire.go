package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyExpire(o *options) *cobra.Command {
	var files keyFiles
	var at string
	cmd := &cobra.Command{
		Use:   "expire NAME|FINGERPRINT --at DATE --signers FILE",
		Short: "let a key count until a date, as when it is replaced by another",
		Long: `expire sets the date in the list of allowed signers. After it a node takes nothing new that this key alone signed, also
if it was signed before; what the node enforces stays.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key expire alice --at 2027-01-31 --signers allowed_signers
  pulley key expire SHA256:… --at now --signers allowed_signers`,
		Args: arguments(1, 1, "takes a name or a fingerprint, as `pulley key list` shows them"),
		RunE: func(_ *cobra.Command, args []string) error {
			if at == "" || files.signers == "" {
				return cli.Usagef("when, and in which list? give --at DATE and --signers FILE")
			}
			end, err := o.date("--at", at)
			if err != nil {
				return err
			}
			var signer trust.Signer
			list, err := readKeyFile(files.signers)
			if err == nil {
				list, signer, err = trust.Expire(list, args[0], end)
			}
			if err == nil {
				err = atomicfile.Replace(files.signers, list, 0o644)
			}
			if err != nil {
				return fmt.Errorf("cannot let a key expire: %w", err)
			}
			fmt.Fprintf(o.env.Stdout, "%s of %s counts until %s\nnext: bring %s to the nodes\n",
				signer.Fingerprint(), strings.Join(signer.Names(), ", "), end.Format(time.RFC3339), files.signers)
			return nil
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "when it ends to count, as in 2027-01-31 or now")
	files.addSigners(cmd.Flags(), "")
	return cmd
}

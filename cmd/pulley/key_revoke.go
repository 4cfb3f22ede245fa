package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyRevoke(o *options) *cobra.Command {
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "revoke PUBLIC-KEY-FILE|FINGERPRINT --revoked FILE",
		Short: "Revoke a key, for example a stolen one",
		Long: `revoke adds a key to the list of revoked keys, and creates the list if it is missing. A revoked key is valid nowhere, even if
it is an allowed signer's. A fingerprint is looked up among the allowed signers.

EXIT STATUS
  0 done, or it was revoked already; 1 failed, 2 wrong usage`,
		Example: `  pulley key revoke alice.pub --revoked revoked_signers
  pulley key revoke SHA256:… --revoked revoked_signers --signers allowed_signers`,
		Args: arguments(1, 1, "takes the file of a public key, or a fingerprint with --signers"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case files.revoked == "":
				return cli.Usagef("give --revoked FILE")
			case strings.HasPrefix(args[0], "SHA256:") && files.signers == "":
				return cli.Usagef("give --signers FILE to look up the fingerprint, or the file of the public key")
			}
			key, err := trust.FindPublicKey(args[0], files.signers)
			if err != nil {
				return err
			}
			added, err := trust.RevokeInFile(files.revoked, key)
			switch {
			case err != nil:
				return err
			case !added:
				fmt.Fprintf(o.env.Stdout, "%s is revoked already\n", key.Fingerprint())
			default:
				fmt.Fprintf(o.env.Stdout, "%s is revoked\nnext: copy %s to the nodes, and sign again what only this key signed\n", key.Fingerprint(), files.revoked)
			}
			return nil
		},
	}
	files.addRevoked(cmd.Flags(), "")
	files.addSigners(cmd.Flags(), " (to find a fingerprint)")
	return cmd
}

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyRevoke(o *options) *cobra.Command {
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "revoke PUBLIC-KEY-FILE|FINGERPRINT --revoked FILE",
		Short: "make a key count no more, as when it was stolen",
		Long: `revoke adds a key to the list of revoked keys, which is made when it is missing. A revoked key counts nowhere, whatever the
allowed signers say. A fingerprint is looked up among the allowed signers.

EXIT STATUS
  0 done, or it was revoked already; 1 failed, 2 wrong usage`,
		Example: `  pulley key revoke alice.pub --revoked revoked_signers
  pulley key revoke SHA256:… --revoked revoked_signers --signers allowed_signers`,
		Args: arguments(1, 1, "takes the file of a public key, or a fingerprint with --signers"),
		RunE: func(_ *cobra.Command, args []string) error {
			if files.revoked == "" {
				return cli.Usagef("which list of revoked keys? give --revoked FILE")
			}
			key, err := files.find(args[0])
			if err != nil {
				return err
			}
			missing := false
			list, err := readKeyFileToAdd(files.revoked)
			if err == nil {
				list, missing, err = trust.Revoke(list, key)
			}
			if err == nil && missing {
				err = atomicfile.Replace(files.revoked, list, 0o644)
			}
			switch {
			case err != nil:
				return fmt.Errorf("cannot revoke the key: %w", err)
			case !missing:
				fmt.Fprintf(o.env.Stdout, "%s is revoked already\n", key.Fingerprint())
			default:
				fmt.Fprintf(o.env.Stdout, "%s is revoked\nnext: bring %s to the nodes, and sign anew what this key alone signed\n", key.Fingerprint(), files.revoked)
			}
			return nil
		},
	}
	files.addRevoked(cmd.Flags(), "")
	files.addSigners(cmd.Flags(), " (to find a fingerprint)")
	return cmd
}

// find returns a key by its file or, among the allowed signers, its fingerprint.
func (k *keyFiles) find(key string) (trust.PublicKey, error) {
	if !strings.HasPrefix(key, "SHA256:") {
		return readPublicKey(key)
	}
	if k.signers == "" {
		return trust.PublicKey{}, cli.Usagef("which list has this fingerprint? give --signers FILE, or the file of the public key")
	}
	signers, _, err := (&keyFiles{signers: k.signers}).read()
	if err != nil {
		return trust.PublicKey{}, err
	}
	for _, s := range signers.All() {
		if s.Fingerprint() == key {
			return trust.PublicKey{PublicKey: s.Key, Comment: s.Comment}, nil
		}
	}
	return trust.PublicKey{}, fmt.Errorf("cannot find key %s in %s\n`pulley key list --signers %s` shows what is there; or give the file of the public key", key, k.signers, k.signers)
}

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKey(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Create signing keys, and edit the list of allowed signers", Args: arguments(0, 0, "takes a verb: create, allow, list, expire, revoke or check"),
		Long: `key edits two files in the formats of OpenSSH: the allowed signers, and the revoked keys. Nodes have copies of them, and
take only what an allowed signer signed for the node's environment. No verb of key connects to etcd.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key create ~/.ssh/pulley
  pulley key allow ~/.ssh/pulley.pub --name alice --environments production,dev --signers allowed_signers
  pulley key list --signers allowed_signers --revoked revoked_signers`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newKeyCreate(o), newKeyAllow(o), newKeyList(o), newKeyExpire(o), newKeyRevoke(o), newKeyCheck(o))
	return cmd
}

// keyFiles are the two lists of keys.
type keyFiles struct{ signers, revoked string }

func (k *keyFiles) addSigners(f *pflag.FlagSet, what string) {
	f.StringVar(&k.signers, "signers", "", "file of the allowed signers"+what)
}

func (k *keyFiles) addRevoked(f *pflag.FlagSet, what string) {
	f.StringVar(&k.revoked, "revoked", "", "file of the revoked keys"+what)
}

// read reads both lists. Without a file, the revoked list is empty.
func (k *keyFiles) read() (*trust.Signers, error) {
	if k.signers == "" {
		return nil, cli.Usagef("give --signers FILE")
	}
	signers, _, err := trust.ReadLists(k.signers, k.revoked)
	return signers, err
}

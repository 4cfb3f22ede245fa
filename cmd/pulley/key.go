package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKey(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "make keys to sign with, and keep the list of those who may", Args: arguments(0, 0, "takes a verb: create, allow, list, expire, revoke or check"),
		Long: `key keeps two files of OpenSSH's: the allowed signers, and the revoked keys. Nodes have copies of them and take nothing
that is not signed by one of these people for the node's environment. No verb of key asks etcd for anything.

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

// keyFiles are the two lists.
type keyFiles struct{ signers, revoked string }

func (k *keyFiles) addSigners(f *pflag.FlagSet, what string) {
	f.StringVar(&k.signers, "signers", "", "file of the allowed signers"+what)
}

func (k *keyFiles) addRevoked(f *pflag.FlagSet, what string) {
	f.StringVar(&k.revoked, "revoked", "", "file of the revoked keys"+what)
}

// read reads both files, and returns the bytes of the first too; a revoked list is empty when no file was given.
func (k *keyFiles) read() (*trust.Signers, []byte, error) {
	if k.signers == "" {
		return nil, nil, cli.Usagef("which list of signers? give --signers FILE")
	}
	allowed, err := readKeyFile(k.signers)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	var revoked []byte
	if k.revoked != "" {
		if revoked, err = readKeyFile(k.revoked); err != nil {
			return nil, nil, fmt.Errorf("cannot read the revoked keys: %w", err)
		}
	}
	signers, err := trust.ParseSigners(allowed, revoked)
	return signers, allowed, err
}

// maxKeyFileBytes bounds a list, a public key or a signed record.
const maxKeyFileBytes = 1 << 20

func readKeyFile(file string) ([]byte, error) {
	return bounded.ReadFile(file, maxKeyFileBytes)
}

// readKeyFileToAdd is readKeyFile for a file that may be missing yet.
func readKeyFileToAdd(file string) ([]byte, error) {
	b, err := readKeyFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func readPublicKey(file string) (trust.PublicKey, error) {
	b, err := readKeyFile(file)
	if err != nil {
		return trust.PublicKey{}, fmt.Errorf("cannot read the public key: %w", err)
	}
	key, err := trust.ParsePublicKey(b)
	if err != nil {
		return trust.PublicKey{}, fmt.Errorf("cannot read the public key in %s: %w", file, err)
	}
	return key, nil
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyCreate(o *options) *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use:   "create FILE",
		Short: "Create a signing key",
		Long: `create runs ssh-keygen -t ed25519, which asks for a passphrase: the private key goes to FILE, the public one to FILE.pub. A
key for ssh or git can sign too, and so can one of a hardware token (ssh-keygen -t ed25519-sk). Without a terminal, give
--no-passphrase.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key create ~/.ssh/pulley`,
		Args:    arguments(1, 1, "takes the file to write"),
		RunE: func(c *cobra.Command, args []string) error {
			if !bare && !trust.CanAsk() {
				return cli.Usagef("no terminal to ask for a passphrase: give --no-passphrase")
			}
			if err := (trust.Key{File: args[0]}).Create(c.Context(), bare); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "created the key %s; its public key is %s.pub\nnext: pulley key allow %s.pub --name %s --environments ENVIRONMENT,… --signers FILE\n",
				args[0], args[0], args[0], o.env.User)
			return nil
		},
	}
	cmd.Flags().BoolVar(&bare, "no-passphrase", false, "no passphrase: anyone who can read the file can sign")
	return cmd
}

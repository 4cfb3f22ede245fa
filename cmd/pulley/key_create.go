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
		Short: "make a key to sign with",
		Long: `create runs ssh-keygen -t ed25519, which asks for a passphrase: the private key goes to FILE, the public one to FILE.pub. A
key that you have for ssh or git can sign too, and so can one of a hardware token (ssh-keygen -t ed25519-sk). Where there is
no terminal to ask at, it takes --no-passphrase.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key create ~/.ssh/pulley`,
		Args:    arguments(1, 1, "takes the file to write"),
		RunE: func(c *cobra.Command, args []string) error {
			if !bare && !trust.CanAsk() {
				return cli.Usagef("nobody can be asked for a passphrase here: give --no-passphrase")
			}
			if err := (trust.Key{File: args[0]}).Create(c.Context(), bare); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "made the key %s; its public half is %s.pub\nnext: pulley key allow %s.pub --name %s --environments ENVIRONMENT,… --signers FILE\n",
				args[0], args[0], args[0], o.env.User)
			return nil
		},
	}
	cmd.Flags().BoolVar(&bare, "no-passphrase", false, "ask for none: whoever reads the file can sign")
	return cmd
}

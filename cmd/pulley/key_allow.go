package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

func newKeyAllow(o *options) *cobra.Command {
	var files keyFiles
	var p trust.Permission
	var after, before string
	cmd := &cobra.Command{
		Use:   "allow PUBLIC-KEY-FILE --name NAME --environments NAMES --signers FILE",
		Short: "Add a key to the list of allowed signers",
		Long: `allow adds a public key to a list of allowed signers, and creates the list if it is missing. The key is valid for the named
environments; '*' is every environment, 'dev*' every one whose name begins with dev. A stack counts as its environment.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key allow alice.pub --name alice --environments production,dev --signers allowed_signers
  pulley key allow bob.pub --name bob --environments '*' --valid-before 2027-01-31 --signers allowed_signers`,
		Args: arguments(1, 1, "takes the file of a public key, like ~/.ssh/id_ed25519.pub"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			switch {
			case p.Name == "":
				return cli.Usagef("give --name NAME, the holder of the key")
			case len(p.Environments) == 0:
				return cli.Usagef("give --environments NAMES, or '*' for all")
			case files.signers == "":
				return cli.Usagef("give --signers FILE")
			}
			if p.ValidAfter, err = o.date("--valid-after", after); err != nil {
				return err
			}
			if p.ValidBefore, err = o.date("--valid-before", before); err != nil {
				return err
			}
			key, err := trust.ReadPublicKey(args[0])
			if err == nil {
				err = trust.AllowInFile(files.signers, key, p)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s may sign for %s with %s\nnext: copy %s to the nodes\n",
				p.Name, strings.Join(p.Environments, ", "), key.Fingerprint(), files.signers)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Name, "name", "", "holder of the key")
	f.StringSliceVar(&p.Environments, "environments", nil, "environments that it is valid for, as in production,dev or '*'")
	f.StringVar(&after, "valid-after", "", "first moment of its validity, as in 2026-12-01 (default: now)")
	f.StringVar(&before, "valid-before", "", "last moment of its validity, as in 2027-01-31 (default: none)")
	files.addSigners(f, "")
	return cmd
}

// date reads the time in a flag. An empty value means no limit.
func (o *options) date(flag, value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	t, err := trust.ParseDate(value, o.env.Now())
	if err != nil {
		return t, cli.Usagef("cannot use %s %s: %v", flag, quoted(value), err)
	}
	return t, nil
}

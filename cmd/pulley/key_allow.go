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

func newKeyAllow(o *options) *cobra.Command {
	var files keyFiles
	var p trust.Permission
	var after, before string
	cmd := &cobra.Command{
		Use:   "allow PUBLIC-KEY-FILE --name NAME --environments NAMES --signers FILE",
		Short: "let somebody sign: add a line to the list of allowed signers",
		Long: `allow adds a public key to a list of allowed signers, which is made when it is missing. The key counts in the environments
that are named; '*' is all, 'dev*' all whose names begin so. A stack counts as its environment.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key allow alice.pub --name alice --environments production,dev --signers allowed_signers
  pulley key allow bob.pub --name bob --environments '*' --valid-before 2027-01-31 --signers allowed_signers`,
		Args: arguments(1, 1, "takes the file of a public key, like ~/.ssh/id_ed25519.pub"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			switch {
			case p.Name == "":
				return cli.Usagef("whose key is it? give --name NAME")
			case len(p.Environments) == 0:
				return cli.Usagef("where may %s sign? give --environments NAMES, or '*' for all", p.Name)
			case files.signers == "":
				return cli.Usagef("which list of signers? give --signers FILE")
			}
			if p.ValidAfter, err = o.date("--valid-after", after); err != nil {
				return err
			}
			if p.ValidBefore, err = o.date("--valid-before", before); err != nil {
				return err
			}
			key, err := readPublicKey(args[0])
			if err != nil {
				return err
			}
			list, err := readKeyFileToAdd(files.signers)
			if err == nil {
				list, err = trust.Allow(list, key, p)
			}
			if err == nil {
				err = atomicfile.Replace(files.signers, list, 0o644)
			}
			if err != nil {
				return fmt.Errorf("cannot allow %s to sign: %w", p.Name, err)
			}
			fmt.Fprintf(o.env.Stdout, "%s may sign for %s with %s\nnext: bring %s to the nodes\n",
				p.Name, strings.Join(p.Environments, ", "), key.Fingerprint(), files.signers)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Name, "name", "", "who holds the key")
	f.StringSliceVar(&p.Environments, "environments", nil, "where it counts, as in production,dev or '*'")
	f.StringVar(&after, "valid-after", "", "when it begins to count, as in 2026-12-01 (default: at once)")
	f.StringVar(&before, "valid-before", "", "when it ends to count, as in 2027-01-31 (default: never)")
	files.addSigners(f, "")
	return cmd
}

// date reads the time of a flag; none is no limit.
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

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/internal/cli"
	"pulley/internal/release/trust"
)

func newKey(o *options) *cobra.Command {
	cmd := group("key", "Create signing keys, and edit the list of allowed signers", `key edits two files in the formats of OpenSSH: the allowed signers, and the revoked keys. Nodes have copies of them, and
take only what an allowed signer signed for the node's environment. No verb of key connects to etcd.`,
		newKeyCreate(o), newKeyAllow(o), newKeyList(o), newKeyExpire(o), newKeyRevoke(o), newKeyCheck(o))
	cmd.Example = `  pulley key create ~/.ssh/pulley
  pulley key allow ~/.ssh/pulley.pub --name alice --environments production,dev --signers allowed_signers
  pulley key list --signers allowed_signers --revoked revoked_signers`
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

func newKeyCreate(o *options) *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use:   "create FILE",
		Short: "Create a signing key",
		Long: `create runs ssh-keygen -t ed25519, which asks for a passphrase: the private key goes to FILE, the public one to FILE.pub. A
key for ssh or git can sign too, and so can one of a hardware token (ssh-keygen -t ed25519-sk). Without a terminal, give
--no-passphrase.`,
		Args: arguments(1, 1, "takes the file to write"),
		RunE: func(c *cobra.Command, args []string) error {
			if !bare && !trust.CanAsk() {
				return cli.Usagef("cannot read a passphrase: standard input is not a terminal\ngive --no-passphrase")
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

func newKeyAllow(o *options) *cobra.Command {
	var files keyFiles
	var p trust.Permission
	var after, before string
	cmd := &cobra.Command{
		Use:   "allow PUBLIC-KEY-FILE --name NAME --environments NAMES --signers FILE",
		Short: "Add a key to the list of allowed signers",
		Long: `allow adds a public key to a list of allowed signers, and creates the list if it is missing. The key is valid for the named
environments; '*' is every environment, 'dev*' every one whose name begins with dev. A stack counts as its environment.`,
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
	f.StringVar(&after, "valid-after", "", "start of its validity, as in 2026-12-01 (default: now)")
	f.StringVar(&before, "valid-before", "", "end of its validity, as in 2027-01-31 (default: none)")
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

// shownKey is one key of `pulley key list -o json`, and one of its holders. docs/json.md describes it.
type shownKey struct {
	Name         string      `json:"name"`
	Fingerprint  string      `json:"fingerprint"`
	Type         string      `json:"type"`
	Environments []string    `json:"environments"`
	Namespaces   string      `json:"namespaces"`
	ValidAfter   *time.Time  `json:"valid_after"`
	ValidBefore  *time.Time  `json:"valid_before"`
	State        trust.State `json:"state"`
	Comment      string      `json:"comment"`
	Line         int         `json:"line"`
}

func newKeyList(o *options) *cobra.Command {
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "list --signers FILE",
		Short: "List the signers, their environments, and whether each key is valid",
		Long:  `list reads the list as a node does: an unreadable line is an error. The state is valid, not_yet, expired or revoked.`,
		Args:  arguments(0, 0, "takes no arguments; --signers names the list"),
		RunE: func(*cobra.Command, []string) error {
			signers, err := files.read()
			if err != nil {
				return err
			}
			shown := []shownKey{}
			for _, s := range signers.All() {
				for _, name := range s.Names() {
					shown = append(shown, shownKey{name, s.Fingerprint(), s.Type(), s.Environments(name), s.Namespaces,
						limit(s.ValidAfter), limit(s.ValidBefore), signers.State(s, o.env.Now()), s.Comment, s.Line})
				}
			}
			return o.out.Print(o.env, shown, func(t *cli.Table) error {
				t.Row("NAME", "ENVIRONMENTS", "STATE", "FROM", "UNTIL", "TYPE", "FINGERPRINT")
				for _, k := range shown {
					t.Row(k.Name, strings.Join(k.Environments, ","), string(k.State), when(k.ValidAfter), when(k.ValidBefore), k.Type, k.Fingerprint)
				}
				return nil
			})
		},
	}
	files.addSigners(cmd.Flags(), "")
	files.addRevoked(cmd.Flags(), " (default: none is)")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func limit(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func newKeyExpire(o *options) *cobra.Command {
	var files keyFiles
	var at string
	cmd := &cobra.Command{
		Use:   "expire NAME|FINGERPRINT --at DATE --signers FILE",
		Short: "End the validity of a key at a date",
		Long: `expire sets the date in the list of allowed signers. After the date, a node accepts no new target that only this key signed,
even if it was signed earlier. The node keeps its current target.`,
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
	cmd.Flags().StringVar(&at, "at", "", "end of its validity, as in 2027-01-31 or now")
	files.addSigners(cmd.Flags(), "")
	return cmd
}

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
				fmt.Fprintf(o.env.Stdout, "%s is revoked\nnext: copy %s to the nodes, and sign the releases and data of this key again\n", key.Fingerprint(), files.revoked)
			}
			return nil
		},
	}
	files.addRevoked(cmd.Flags(), "")
	files.addSigners(cmd.Flags(), " (to find a fingerprint)")
	return cmd
}

func newKeyCheck(o *options) *cobra.Command {
	var files keyFiles
	var use string
	cmd := &cobra.Command{
		Use:   "check FILE -e ENVIRONMENT --signers FILE",
		Short: "Verify a signed record as a node does",
		Long: `check verifies a record as a node of the environment does with these lists. The signatures are in FILE.sig, as
` + "`pulley releases export`" + ` writes them, or in FILE itself after the record's line, as in etcd.

EXIT STATUS
  0 it is authentic, 1 it is not, 2 wrong usage`,
		Example: `  pulley releases export 1.4.0 --record record
  pulley key check record -e production --signers allowed_signers --revoked revoked_signers`,
		Args: arguments(1, 1, "takes the file of a signed record"),
		RunE: func(_ *cobra.Command, args []string) error {
			ns, known := map[string]trust.Namespace{"release": trust.Release, "data": trust.Data, "rollback": trust.Rollback, "agent": trust.Agent, "current": trust.Current}[use]
			if !known {
				return cli.Usagef("cannot check a record as %s: give release, data, rollback, agent or current", quoted(use))
			}
			ref, err := o.fleet.Ref(o.env)
			if err != nil {
				return err
			}
			signers, err := files.read()
			if err != nil {
				return err
			}
			record, signatures, err := trust.ReadRecord(args[0])
			if err != nil {
				return err
			}
			by, err := signers.Verify(ns, ref.String(), record, signatures, o.env.Now())
			if err != nil {
				return fmt.Errorf("cannot trust %s in %s: %w", args[0], ref, err)
			}
			fmt.Fprintf(o.env.Stdout, "%s is authentic in %s: signed by %s\n", args[0], ref, by)
			return nil
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	files.addSigners(cmd.Flags(), "")
	files.addRevoked(cmd.Flags(), " (default: none is)")
	cmd.Flags().StringVar(&use, "as", "release", "use of the record: release, data, rollback, agent or current")
	return cmd
}

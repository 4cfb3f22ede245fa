package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// read reads both files; a revoked list is empty when no file was given.
func (k *keyFiles) read() (*trust.Signers, error) {
	if k.signers == "" {
		return nil, cli.Usagef("which list of signers? give --signers FILE")
	}
	allowed, err := readList(k.signers)
	if err != nil {
		return nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	var revoked []byte
	if k.revoked != "" {
		if revoked, err = readList(k.revoked); err != nil {
			return nil, fmt.Errorf("cannot read the revoked keys: %w", err)
		}
	}
	return trust.ParseSigners(allowed, revoked)
}

// maxKeyFile bounds what is read of a file; package trust says what is too large.
const maxKeyFile = 2 << 20

func readList(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// readListToAdd is readList for a file that may be missing yet.
func readListToAdd(file string) ([]byte, error) {
	b, err := readList(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func readPublicKey(file string) (trust.PublicKey, error) {
	b, err := readList(file)
	if err != nil {
		return trust.PublicKey{}, fmt.Errorf("cannot read the public key: %w", err)
	}
	key, err := trust.ParsePublicKey(b)
	if err != nil {
		return trust.PublicKey{}, fmt.Errorf("cannot read the public key in %s: %w", file, err)
	}
	return key, nil
}

func newKeyCreate(o *options) *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use:   "create FILE",
		Short: "make a key to sign with",
		Long: `create runs ssh-keygen -t ed25519, which asks for a passphrase: the private key goes to FILE, the public one to FILE.pub. A
key that you have for ssh or git can sign too, and so can one of a hardware token (ssh-keygen -t ed25519-sk).

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley key create ~/.ssh/pulley`,
		Args:    arguments(1, 1, "takes the file to write"),
		RunE: func(c *cobra.Command, args []string) error {
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
			list, err := readListToAdd(files.signers)
			if err == nil {
				list, err = trust.Allow(list, key, p)
			}
			if err == nil {
				err = trust.WriteFile(files.signers, list, 0o644)
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

// shownKey is one key of `pulley key list -o json` and one of its holders; docs/json.md describes it.
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
		Short: "show who may sign, where, and whether the key counts now",
		Long: `list reads the list as a node does: a line that it can't read is an error. State is valid, not yet, expired or revoked.

EXIT STATUS
  0 done (whatever the keys' states), 1 failed, 2 wrong usage`,
		Example: `  pulley key list --signers allowed_signers --revoked revoked_signers`,
		Args:    arguments(0, 0, "takes no arguments; --signers names the list"),
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
			list, err := readList(files.signers)
			if err == nil {
				list, signer, err = trust.Expire(list, args[0], end)
			}
			if err == nil {
				err = trust.WriteFile(files.signers, list, 0o644)
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
			list, err := readListToAdd(files.revoked)
			if err == nil {
				list, missing, err = trust.Revoke(list, key)
			}
			if err == nil && missing {
				err = trust.WriteFile(files.revoked, list, 0o644)
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
	signers, err := (&keyFiles{signers: k.signers}).read()
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

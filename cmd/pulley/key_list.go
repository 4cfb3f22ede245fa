package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/trust"
)

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
		Long: `list reads the list as a node does: an unreadable line is an error. The state is valid, not_yet, expired or revoked.

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

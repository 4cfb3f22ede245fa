package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
	"pulley/internal/trust"
)

func newReleasesShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show VERSION", Short: "Show the record of a release, and its users",
		Long: `show prints all of one release's record, and which environments want it or have nodes that run it.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return o.showRelease(ctx, s, args[0]) })
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// shownRelease is one release and its users.
type shownRelease struct {
	listedRelease
	Users []releaseUser `json:"users"`
}

// releaseUser is an environment that wants a release, or that has nodes with it.
type releaseUser struct {
	Environment string   `json:"environment"`
	Desired     []string `json:"desired"` // everybody, role R, node N
	Nodes       int      `json:"nodes"`   // number of nodes that run it
}

// signature is the signer that a signature claims. It is not verified here.
type signature struct {
	Key  string `json:"key"`  // fingerprint in the format of ssh-keygen -l
	Type string `json:"type"` // of the key
}

// signaturesOf lists the signatures of a record. An unreadable signature has no key.
func signaturesOf(armored []byte) []signature {
	all := []signature{}
	if len(armored) == 0 {
		return all
	}
	for _, s := range trust.SignedBy(armored) {
		one := signature{Key: s.Fingerprint, Type: s.Type}
		if one.Key == "" {
			one.Key = "unreadable"
		}
		all = append(all, one)
	}
	return all
}

func (o *options) showRelease(ctx context.Context, s *store.Store, version string) error {
	r, err := s.Releases.Get(ctx, version)
	if err != nil {
		return err
	}
	users, err := o.usersOf(ctx, s, r.Version, r.Content.Tree)
	if err != nil {
		return err
	}
	shown := shownRelease{listed(r), users}
	return o.out.Print(o.env, shown, func(*cli.Table) error {
		o.describeRelease(shown)
		return nil
	})
}

// usersOf returns the environments that want a release, and the number of their nodes that run it.
func (o *options) usersOf(ctx context.Context, s *store.Store, version, tree string) ([]releaseUser, error) {
	names, err := s.Environments.List(ctx)
	if err != nil {
		return nil, err
	}
	users := []releaseUser{}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // not an environment's key
		}
		f, err := s.Fleet.State(ctx, ref)
		if err != nil {
			return nil, err
		}
		u := releaseUser{Environment: name, Desired: []string{}}
		if f.Desires.Default.Release == version {
			u.Desired = append(u.Desired, store.Scope{}.String())
		}
		for _, role := range slices.Sorted(maps.Keys(f.Desires.Roles)) {
			if f.Desires.Roles[role].Release == version {
				u.Desired = append(u.Desired, store.Scope{Role: role}.String())
			}
		}
		for _, node := range slices.Sorted(maps.Keys(f.Desires.Nodes)) {
			if f.Desires.Nodes[node].Release == version {
				u.Desired = append(u.Desired, store.Scope{Node: node}.String())
			}
		}
		for _, st := range f.Statuses {
			if st.Enforcing.Release == version && st.Enforcing.Tree == tree {
				u.Nodes++
			}
		}
		if len(u.Desired) > 0 || u.Nodes > 0 {
			users = append(users, u)
		}
	}
	return users, nil
}

func (o *options) describeRelease(r shownRelease) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(o.env.Stdout, "%-11s", name)
		cli.Cleanf(o.env.Stdout, format, args...)
		_, _ = io.WriteString(o.env.Stdout, "\n")
	}
	line("release", "%s", r.Version)
	if r.Message != "" {
		line("message", "%s", r.Message)
	}
	line("published", "%s, %s, by %s", r.At.UTC().Format(time.RFC3339), cli.Ago(o.env.Now(), r.At), r.Author)
	if r.Commit != "" {
		text := r.Commit
		if r.Ref != "" {
			text += " (" + r.Ref + ")"
		}
		if r.CommitAuthor != "" {
			text += " by " + r.CommitAuthor
		}
		if r.Dirty {
			text += ", with changes that are in no commit"
		}
		line("commit", "%s", text)
	}
	if r.Modules != "" {
		line("modules", "as %s resolved its Puppetfile", r.Modules)
	}
	if len(r.Signatures) == 0 {
		line("signed by", "%s", "nobody")
	}
	for _, s := range r.Signatures {
		if s.Type == "" {
			line("signed by", "%s (nobody can tell whose it is, and no node takes it)", s.Key)
			continue
		}
		line("signed by", "%s (%s; `pulley releases verify --signers` says whether it counts)", s.Key, s.Type)
	}
	line("tree", "%s", r.Content.Tree)
	line("content", "%s, %s", cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes))
	c := r.Content.Chain
	line("line", "%s, position %d, with the base at %d", c.Line, c.Seq, r.Content.Base.Seq)
	fetch := cli.Bytes(r.Cold) + " by a node that has nothing yet"
	if c.Delta != nil {
		fetch += ", " + cli.Bytes(c.Delta.Size) + " by one that has the release before"
	}
	line("to fetch", "%s", fetch)
	if len(r.Users) == 0 {
		line("used by", "%s", "nobody")
	}
	for _, u := range r.Users {
		wants := "no target names it"
		if len(u.Desired) > 0 {
			wants = "the target of " + strings.Join(u.Desired, ", ")
		}
		line("used by", "%s: %s; %s on it", u.Environment, wants, cli.Count(u.Nodes, "node"))
	}
}

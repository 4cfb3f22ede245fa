package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
)

func newReleases(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "releases", Short: "List the published releases, newest version first",
		Long: `releases lists what is published, the newest version first. A record that can't be read is told of, and the others are
listed.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments, or one of its verbs"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withStore(c, o.releases) },
	}
	o.out.AddFlags(cmd.Flags())
	cmd.AddCommand(
		newReleasesShow(o), newReleasesDiff(o), newReleasesVerify(o), newReleasesExport(o), newReleasesPrune(o), newReleasesSign(o),
	)
	return cmd
}

// listedRelease is one release in the JSON output.
type listedRelease struct {
	store.Release
	Cold       int64       `json:"cold"` // download size for a node without any release, in bytes
	Signatures []signature `json:"signatures"`
}

func listed(r store.SignedRelease) listedRelease {
	return listedRelease{Release: r.Release, Cold: r.Content.Cold(), Signatures: signaturesOf(r.Signatures)}
}

func (o *options) releases(ctx context.Context, s *store.Store) error {
	published, err := s.Releases.List(ctx)
	var unreadable *store.UnreadableReleases
	if errors.As(err, &unreadable) {
		for _, err := range unreadable.Errors {
			cli.Complain(o.env, program, fmt.Errorf("warning: the list is not whole: %w", err))
		}
		err = nil
	}
	if err != nil {
		return err
	}
	all := make([]listedRelease, 0, len(published))
	for _, r := range slices.Backward(published) {
		all = append(all, listed(r))
	}
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		if len(all) == 0 && unreadable == nil {
			fmt.Fprintln(o.env.Stdout, "no release is published; `pulley publish DIR --version 1.0.0` makes the first one")
			return nil
		}
		t.Row("VERSION", "TREE", "FILES", "SIZE", "STORED", "SIGNED", "PUBLISHED", "BY", "COMMIT", "MESSAGE")
		for _, r := range all {
			commit := fmt.Sprintf("%.10s", r.Commit)
			if r.Dirty {
				commit += "+"
			}
			signed := "no"
			if len(r.Signatures) > 0 {
				signed = "yes"
			}
			t.Row(r.Version, fmt.Sprintf("%.12s", r.Content.Tree), strconv.Itoa(r.Content.Files), cli.Bytes(r.Content.Bytes),
				cli.Bytes(added(r)), signed, cli.Ago(o.env.Now(), r.At), r.Author, commit, string(r.Message))
		}
		return nil
	})
}

// added returns the bytes that a release added to etcd: its delta, and its own base if any.
func added(r listedRelease) int64 {
	var n int64
	if r.Content.Chain.Delta != nil {
		n = r.Content.Chain.Delta.Size
	}
	if r.Content.Base.Seq == r.Content.Chain.Seq {
		n += r.Content.Base.Stored
	}
	return n
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
	"pulley/internal/trust"
)

type verifyOptions struct {
	*options
	fleet            cli.EnvironmentFlag
	signers, revoked string
}

func newReleasesVerify(o *options) *cobra.Command {
	v := verifyOptions{options: o}
	cmd := &cobra.Command{
		Use:   "verify [VERSION...]",
		Short: "check every byte of releases and live data in etcd against its hash",
		Long: `verify reads what etcd holds of these releases (without any: of all of them, of all live data, and objects that no release
names), each value once, and checks it as a node would: by its hash, and by whether it gives the release's tree.

With --signers and -e it also checks the signatures of the releases, and those of the environment's live data, as a node of
that environment would now.

EXIT STATUS
  0 all is as it should be, 1 something is not (or failed), 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1<<20, "takes versions"),
		RunE: func(c *cobra.Command, args []string) error {
			if v.signers == "" && (v.revoked != "" || c.Flags().Changed("environment")) {
				return cli.Usagef("-e and --revoked are for --signers, which is missing")
			}
			return v.withStore(c, func(ctx context.Context, s *store.Store) error { return v.verify(ctx, s, args) })
		},
	}
	v.fleet.AddFlag(cmd.Flags())
	v.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&v.signers, "signers", "", "allowed_signers file, as nodes have it, to check signatures by")
	cmd.Flags().StringVar(&v.revoked, "revoked", "", "file of revoked keys, one public key a line")
	return cmd
}

func (v verifyOptions) verify(ctx context.Context, s *store.Store, versions []string) error {
	trusted, environment, err := v.trusted()
	if err != nil {
		return err
	}
	releases, err := releasesOf(ctx, s, versions)
	var unreadable *store.UnreadableReleases
	if err != nil && !errors.As(err, &unreadable) {
		return err
	}
	// By line and position: neighbours share what is read.
	slices.SortStableFunc(releases, func(a, b store.SignedRelease) int {
		x, y := a.Content.Chain, b.Content.Chain
		return cmp.Or(strings.Compare(x.Line, y.Line), cmp.Compare(x.Seq, y.Seq))
	})
	progress := cli.NewProgress(v.env)
	defer progress.Done()
	what := ""
	var a *audit
	a = newAudit(s, func() {
		progress.Show(fmt.Sprintf("verifying %s: %s, %s", what, cli.Count(a.result.Objects+a.result.Deltas, "value"), cli.Bytes(a.result.Bytes)))
	})
	if unreadable != nil {
		for i, version := range unreadable.Versions {
			a.unreadable(version, unreadable.Errors[i])
		}
	}
	for _, r := range releases {
		what = r.Version
		if err := a.release(ctx, r); err != nil {
			return err
		}
		if trusted != nil {
			if _, err := trusted.Verify(trust.Release, environment.Environment, r.Record, r.Signatures, v.env.Now()); err != nil {
				a.refused("releases/"+r.Version, err, r.Version, "sign them again: pulley releases sign VERSION --sign-key FILE")
			} else {
				a.result.Signatures++
			}
		}
	}
	if len(versions) == 0 {
		what = "what no release names"
		if err := a.agents(ctx); err != nil {
			return err
		}
		if err := a.unused(ctx); err != nil {
			return err
		}
		what = "live data"
		if err := v.verifyData(ctx, s, a, trusted, environment); err != nil {
			return err
		}
	}
	progress.Done()
	return v.tell(a.result)
}

// trusted reads the list of signers; nil when it is not asked for.
func (v verifyOptions) trusted() (*trust.Signers, environments.Ref, error) {
	if v.signers == "" {
		return nil, environments.Ref{}, nil
	}
	ref, err := v.fleet.Ref(v.env)
	if err != nil {
		return nil, environments.Ref{}, err
	}
	files := keyFiles{signers: v.signers, revoked: v.revoked}
	trusted, _, err := files.read()
	return trusted, ref, err
}

// releasesOf are the releases of these versions, each once; all when there is none. As store.Releases does, it returns those
// that can be read with *store.UnreadableReleases for the others.
func releasesOf(ctx context.Context, s *store.Store, versions []string) ([]store.SignedRelease, error) {
	if len(versions) == 0 {
		return s.Releases(ctx)
	}
	var all []store.SignedRelease
	var unreadable store.UnreadableReleases
	for i, version := range versions {
		if slices.Contains(versions[:i], version) {
			continue
		}
		r, err := s.Release(ctx, version)
		var one *store.UnreadableError
		switch {
		case errors.As(err, &one):
			unreadable.Versions, unreadable.Errors = append(unreadable.Versions, version), append(unreadable.Errors, err)
		case err != nil:
			return nil, err
		default:
			all = append(all, r)
		}
	}
	if len(unreadable.Errors) > 0 {
		return all, &unreadable
	}
	return all, nil
}

func (v verifyOptions) tell(r auditResult) error {
	err := v.out.Print(v.env, r, func(t *cli.Table) error {
		if len(r.Problems) > 0 {
			t.Row("KEY", "PROBLEM", "RELEASES")
		}
		for _, p := range r.Problems {
			problem, _, _ := strings.Cut(p.Problem, "\n")
			t.Row(p.Key, problem, strings.Join(p.Releases, " "))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if v.out.ForPeople() {
		fmt.Fprintln(v.env.Stdout, v.summary(r))
	}
	if len(r.Problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(append([]string{r.verdict()}, r.advice()...), "\n"))
}

// verdict is what the problems mean, in one line.
func (r auditResult) verdict() string {
	concerned, keys := map[string]bool{}, map[string]bool{}
	for _, p := range r.Problems {
		keys[p.Key] = true
		for _, release := range p.Releases {
			concerned[release] = true
		}
	}
	wrong := "1 value is not as it has to be"
	if len(keys) > 1 {
		wrong = fmt.Sprintf("%d values are not as they have to be", len(keys))
	}
	if len(concerned) == 0 {
		return "cannot vouch for what is beside the releases: " + wrong
	}
	return fmt.Sprintf("cannot vouch for %s of %d: %s", cli.Count(len(concerned), "release"), r.Releases, wrong)
}

// advice is what to do about the problems, each thing once.
func (r auditResult) advice() []string {
	const (
		keep    = "nodes that have such a release on disk keep it; others refuse it and stay on what they have"
		whole   = "promote a release that is whole"
		restore = "put the keys back from a mirror's files or a backup of etcd, or, where they are missing, publish the folder as a new version"
	)
	var lines []string
	say := func(line string) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, p := range r.Problems {
		if p.next == "" && len(p.Releases) > 0 {
			say(keep)
			say(whole)
		}
	}
	for _, p := range r.Problems {
		say(cmp.Or(p.next, restore))
	}
	return lines
}

func (v verifyOptions) summary(r auditResult) string {
	text := fmt.Sprintf("checked %s and %s of live data: %s, %s and %s with %s",
		cli.Count(r.Releases, "release"), cli.Count(r.Generations, "generation"), cli.Count(r.Objects, "object"),
		cli.Count(r.Deltas, "delta"), cli.Count(r.Layers, "layer"), cli.Bytes(r.Bytes))
	if v.signers != "" {
		text += ", " + cli.Count(r.Signatures, "good signature")
	}
	if r.Unused > 0 {
		text += fmt.Sprintf("; no release names %s", cli.Count(r.Unused, "object"))
	}
	return text
}

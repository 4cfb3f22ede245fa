package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

func newReleasesVerify(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "verify [VERSION...]",
		Short: "Check every byte of releases and live data in etcd against its hash",
		Long: `verify reads the content of these releases from etcd, each value once, and checks it as a node does: every value by its
hash, and all values of a release by its tree. Without versions it checks all releases, all programs of the agent, all live
data, and objects that no release names.

With --signers and -e it also verifies the signatures of the releases and of the environment's live data, as a node of that
environment would now.

EXIT STATUS
  0 no problems, 1 problems found (or failed), 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1<<20, "takes versions"),
		RunE: func(c *cobra.Command, args []string) error {
			var signatures *publish.Trust
			switch {
			case files.signers != "":
				ref, err := fleet.Ref(o.env)
				if err != nil {
					return err
				}
				trusted, err := files.read()
				if err != nil {
					return err
				}
				signatures = &publish.Trust{Signers: trusted, Environment: ref, Now: o.env.Now()}
			case files.revoked != "" || c.Flags().Changed("environment"):
				return cli.Usagef("-e and --revoked need --signers")
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				r, progress := o.reporter()
				defer progress.Done()
				found, err := publish.Verify(ctx, s, args, signatures, r)
				if err != nil {
					return err
				}
				progress.Done()
				return o.showAudit(found, signatures != nil)
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&files.signers, "signers", "", "allowed_signers file, as nodes have it, to verify signatures by")
	cmd.Flags().StringVar(&files.revoked, "revoked", "", "file of revoked keys, one public key per line")
	return cmd
}

func (o *options) showAudit(a publish.Audit, signed bool) error {
	err := o.out.Print(o.env, a, func(t *cli.Table) error {
		if len(a.Findings) > 0 {
			t.Row("KEY", "PROBLEM", "RELEASES")
		}
		for _, f := range a.Findings {
			t.Row(f.Key, f.String(), strings.Join(f.Releases, " "))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.out.ForPeople() {
		text := fmt.Sprintf("checked %s and %s of live data: %s, %s and %s with %s",
			cli.Count(a.Releases, "release"), cli.Count(a.Generations, "generation"), cli.Count(a.Objects, "object"),
			cli.Count(a.DeltaCount, "delta"), cli.Count(a.Layers, "layer"), cli.Bytes(a.Bytes))
		if signed {
			text += ", " + cli.Count(a.Signatures, "valid signature")
		}
		if a.Unused > 0 {
			text += fmt.Sprintf("; no release names %s", cli.Count(a.Unused, "object"))
		}
		fmt.Fprintln(o.env.Stdout, text)
	}
	if len(a.Findings) == 0 {
		return nil
	}
	concerned, keys := map[string]bool{}, map[string]bool{}
	for _, f := range a.Findings {
		keys[f.Key] = true
		for _, release := range f.Releases {
			concerned[release] = true
		}
	}
	verdict := fmt.Sprintf("found problems with %s", cli.Count(len(keys), "key"))
	if len(concerned) > 0 {
		verdict += fmt.Sprintf(", in %d of %s", len(concerned), cli.Count(a.Releases, "release"))
	}
	return errors.New(strings.Join(append([]string{verdict}, a.Remedies()...), "\n"))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"pulley/internal/fleetca"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// examined is what -o json has.
type examined struct {
	Worst    store.Severity  `json:"worst"`
	Findings store.Diagnosis `json:"findings"`
}

func newDoctor(o *options) *cobra.Command {
	var mend, all bool
	var dataDir string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check etcd and the fleet, and report problems with their remedies",
		Long: `doctor looks at etcd (does it answer, is it repaired, is there room, TLS, who may do what), at certificates that end, and
at nodes: those that flood, clones, first boots that stand still, and what nodes that are gone left behind. It shows what is
wrong, with what to do about it; --all shows also what is well. It works with the embedded etcd and with any other, and
sees most as an admin.

With --mend it first puts right what decides nothing: grants of roles that differ from what they should be, and etcd users
that belong to nobody.

EXIT STATUS
  0 there is no problem (warnings there may be), 1 there is one, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				found, err := s.Doctor.Examine(ctx, o.connection.Config(), o.env.Now(), mend)
				if err != nil && len(found) == 0 {
					return err
				}
				if dataDir != "" && err == nil {
					var f store.Finding
					if f, err = o.stranger(ctx, s, dataDir); err == nil {
						found = append(found, f)
					}
				}
				return o.diagnosis(found, all, err)
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&mend, "mend", false, "put right grants of roles, and users that belong to nobody")
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "data folder of pulley serve: try also whether a certificate of its CA that no user has gets in")
	cmd.Flags().BoolVar(&all, "all", false, "show also what is well")
	return cmd
}

// stranger tries to get in with a certificate of the CA whose name no user has.
func (o *options) stranger(ctx context.Context, s *store.Store, dataDir string) (store.Finding, error) {
	dir := filepath.Join(dataDir, fleetca.PKIName)
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil {
		return store.Finding{}, fmt.Errorf("cannot use the CA of %s: %w", dataDir, err)
	}
	certs, err := fleetca.Open(dir, o.connection.Prefix, hostname(), pki.Options{Now: o.env.Now})
	if err != nil {
		return store.Finding{}, err
	}
	if err := certs.MayJoin(ctx, s, o.connection.Config()); err != nil {
		advice := ""
		if join := (*fleetca.JoinError)(nil); errors.As(err, &join) {
			advice = join.Hint()
		}
		return store.Finding{Check: "stranger", Severity: store.Problem, Text: "nodes cannot join with the CA of " + dataDir + ": " + err.Error(), Advice: advice}, nil
	}
	return store.Finding{Check: "stranger", Severity: store.Fine, Text: "etcd knows the CA of " + dataDir + ", and refuses a certificate of it that no user has"}, nil
}

// diagnosis shows what was found; what went wrong meanwhile is told after it.
func (o *options) diagnosis(found store.Diagnosis, all bool, err error) error {
	result := examined{Worst: found.Worst(), Findings: list(found)}
	printed := o.out.Print(o.env, result, func(*cli.Table) error {
		o.showDiagnosis(found, all)
		return nil
	})
	if err == nil && printed == nil && result.Worst == store.Problem {
		return &cli.SilentError{Code: cli.ExitFailed}
	}
	return errors.Join(err, printed)
}

func (o *options) showDiagnosis(found store.Diagnosis, all bool) {
	counts := map[store.Severity]int{}
	for _, f := range found {
		counts[f.Severity]++
		if f.Severity == store.Fine && !all {
			continue
		}
		where := ""
		if f.Environment != "" && !strings.Contains(f.Text, f.Environment) {
			where = " (" + f.Environment + ")"
		}
		cli.Cleanf(o.env.Stdout, "%s: %s: %s%s\n", f.Severity, f.Check, f.Text, where)
		if f.Advice != "" {
			cli.Cleanf(o.env.Stdout, "  %s\n", f.Advice)
		}
	}
	fmt.Fprintf(o.env.Stdout, "%s, %s, %d checks are well\n", cli.Count(counts[store.Problem], "problem"), cli.Count(counts[store.Warning], "warning"), counts[store.Fine])
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/doctor"
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// examined is the JSON output.
type examined struct {
	Worst    doctor.Severity `json:"worst"`
	Findings []rendered      `json:"findings"`
}

// rendered is a finding with its sentence.
type rendered struct {
	doctor.Finding
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// doctorCommand shows what doctor finds.
type doctorCommand struct{ *options }

func newDoctor(o *options) *cobra.Command {
	var fix, all bool
	var dataDir string
	var keys []string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check etcd, access, certificates and nodes, and report problems with their remedies",
		Long: `doctor checks etcd (answers, version, quota, alarms, TLS, users and roles), certificates that end, and nodes: floods,
duplicate machines, stalled first boots, and keys of removed nodes. It prints problems and warnings, each with its remedy;
--all prints also passed checks. It works with the embedded etcd and with any other. Only an admin can run all checks.

With --delete KEY it only deletes a key that it lists as unreadable, after a question.

With --fix it first repairs wrong grants of roles, deletes orphaned etcd users, and compacts and defragments an etcd that is full.

EXIT STATUS
  0 no problem (warnings are possible), 1 a problem, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if len(keys) > 0 {
				return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error { return doctorCommand{o}.delete(ctx, s, keys) })
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				found, err := doctor.Examine(ctx, s, o.connection.Config(), o.env.Now(), fix)
				if err != nil && len(found) == 0 {
					return err
				}
				if dataDir != "" && err == nil {
					var f doctor.Finding
					if f, err = doctor.ExamineCA(ctx, s, o.connection.Config(), dataDir, hostname(), o.env.Now); err == nil {
						found = append(found, f)
					}
				}
				if err == nil {
					var more []doctor.Finding
					more, err = doctorCommand{o}.secrets(ctx, s, dataDir)
					found = append(found, more...)
				}
				return doctorCommand{o}.diagnosis(found, all, err)
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&fix, "fix", false, "first repair grants of roles, delete orphaned users, and make room in a full etcd")
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "data folder of pulley serve: also check that etcd refuses a certificate of its CA without a user; read the key of secrets there, not through serve")
	cmd.Flags().StringArrayVar(&keys, "delete", nil, "delete a `KEY` of etcd that doctor lists as unreadable, and check nothing; may be repeated")
	o.addConfirmation(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "show also passed checks")
	return cmd
}

// delete deletes keys that cannot be read.
func (o doctorCommand) delete(ctx context.Context, s *etcd.DB, keys []string) error {
	for i, key := range keys {
		if plain, err := strconv.Unquote(key); err == nil { // as doctor prints a key with other characters
			keys[i] = plain
		}
	}
	err := doctor.Delete(ctx, s, keys, func(found []kinds.Unreadable) error {
		for _, u := range found {
			cli.Cleanf(o.env.Stdout, "delete key %s: %s\n", u.Key, u.Problem)
			if after := doctor.After(u.Key); after != "" {
				cli.Cleanf(o.env.Stdout, "  %s\n", after)
			}
		}
		return o.confirm(ctx, "Delete "+cli.Count(len(found), "key")+"?")
	})
	if err == nil {
		fmt.Fprintf(o.env.Stdout, "deleted %s\n", cli.Count(len(keys), "key"))
	}
	return err
}

// secrets examines whether the identities of secrets are lost, with the key in the data folder, else through serve.
func (o doctorCommand) secrets(ctx context.Context, s *etcd.DB, dataDir string) ([]doctor.Finding, error) {
	if dataDir != "" {
		decrypts, err := doctor.KeyIn(dataDir, pki.Options{Now: o.env.Now})
		if err != nil {
			return nil, err
		}
		return doctor.ExamineSecrets(ctx, s, decrypts)
	}
	sealer, err := o.sealer()
	if err != nil || len(o.servers()) == 0 {
		return nil, nil // a fleet without certificates has no secrets; else serve is not known
	}
	return doctor.ExamineSecrets(ctx, s, func(ctx context.Context, ref model.Ref, role string, _ targets.Recipients) (bool, error) {
		_, err := sealer.Reveal(ctx, join.RevealRequest{Environment: ref.String(), Role: role})
		var refused *join.RefusedError
		if errors.As(err, &refused) && refused.Reason == join.IdentityLost {
			return true, nil
		}
		return false, err
	})
}

// diagnosis prints the findings, and then any error of the examination.
func (o doctorCommand) diagnosis(found doctor.Diagnosis, all bool, err error) error {
	result := examined{Worst: found.Worst(), Findings: []rendered{}}
	for _, f := range found {
		result.Findings = append(result.Findings, rendered{f, f.Sentence(), f.Remedy()})
	}
	printed := o.out.Print(o.env, result, func(*cli.Table) error {
		o.showDiagnosis(found, all)
		return nil
	})
	if err == nil && printed == nil && result.Worst == doctor.Problem {
		return &cli.SilentError{Code: cli.ExitFailed}
	}
	return errors.Join(err, printed)
}

func (o doctorCommand) showDiagnosis(found doctor.Diagnosis, all bool) {
	counts := map[doctor.Severity]int{}
	for _, f := range found {
		counts[f.Severity]++
		if f.Severity == doctor.Fine && !all {
			continue
		}
		where, text := "", f.Sentence()
		if f.Environment != "" && !strings.Contains(text, f.Environment) {
			where = " (" + f.Environment + ")"
		}
		cli.Cleanf(o.env.Stdout, "%s: %s: %s%s\n", f.Severity, f.Check, text, where)
		if remedy := f.Remedy(); remedy != "" {
			cli.Cleanf(o.env.Stdout, "  %s\n", remedy)
		}
	}
	fmt.Fprintf(o.env.Stdout, "%s, %s, %d fine\n", cli.Count(counts[doctor.Problem], "problem"), cli.Count(counts[doctor.Warning], "warning"), counts[doctor.Fine])
}

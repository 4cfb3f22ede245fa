package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/controlrepo"
)

func newInit(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Write a small control repository to start from",
		Long: `init writes a control repository to DIR, which must be empty or missing: environments/dev.yaml, hieradata, hiera.yaml,
manifests/site.pp, and the module that manages the agent's schedule.`,
		Args: arguments(1, 1, "takes the folder to write"),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := controlrepo.Init(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "wrote %d files to %s\nnext: pulley validate %s; pulley publish %s --version 1.0.0\n",
				len(files), args[0], args[0], args[0])
			return nil
		},
	}
}

// validateDeadline limits `puppet parser validate` for a complete repository.
const validateDeadline = 5 * time.Minute

func newValidate(o *options) *cobra.Command {
	var noPuppet bool
	cmd := &cobra.Command{
		Use:   "validate DIR",
		Short: "Check a control repository before it is published",
		Long: `validate checks the environments, all YAML and, if Puppet is installed, the manifests. It reports features of Puppet that
need a server: exported resources, puppetdb_query, file-server mounts.

EXIT STATUS
  0 no errors (warnings are possible), 1 errors, 2 wrong usage`,
		Args: arguments(1, 1, "takes the folder of a control repository"),
		RunE: func(c *cobra.Command, args []string) error {
			report, puppet, err := o.validate(c.Context(), args[0], noPuppet)
			if err != nil {
				return err
			}
			err = o.out.Print(o.env, report, func(*cli.Table) error { o.showFindings(report, parsedBy(puppet, noPuppet)); return nil })
			if err == nil && report.Errors() > 0 {
				err = &cli.SilentError{Code: cli.ExitFailed}
			}
			return err
		},
	}
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&noPuppet, "no-puppet", false, "do not parse manifests, even if Puppet is installed")
	return cmd
}

// validate checks a repository. puppet is "" if its manifests were not parsed.
func (o *options) validate(ctx context.Context, dir string, noPuppet bool) (report controlrepo.Report, puppet string, err error) {
	ctx, cancel := context.WithTimeout(ctx, validateDeadline)
	defer cancel()
	var opts controlrepo.Options
	if puppet = installedPuppet(noPuppet); puppet != "" {
		opts.Manifests = controlrepo.PuppetValidator(puppet)
	}
	report, err = controlrepo.Validate(ctx, dir, opts)
	return report, puppet, err
}

// installedPuppet returns the Puppet of this machine, or "".
func installedPuppet(no bool) string {
	puppet, err := exec.LookPath("puppet")
	if no || err != nil {
		return ""
	}
	return puppet
}

// parsedBy names the Puppet that parsed the manifests.
func parsedBy(puppet string, noPuppet bool) string {
	switch {
	case noPuppet:
		return "manifests not parsed: --no-puppet"
	case puppet == "":
		return "manifests not parsed: Puppet is not installed here"
	}
	return "manifests parsed by Puppet"
}

func (o *options) showFindings(r controlrepo.Report, parsed string) {
	for _, f := range r.Findings {
		fmt.Fprintln(o.env.Stdout, cli.Clean(f.String()))
		if f.Hint != "" {
			fmt.Fprintln(o.env.Stdout, "  "+cli.Clean(f.Hint))
		}
	}
	fmt.Fprintf(o.env.Stdout, "%s, %s, %s; %s\n", cli.Count(r.Files, "file"), cli.Count(r.Errors(), "error"), cli.Count(r.Warnings(), "warning"), parsed)
}

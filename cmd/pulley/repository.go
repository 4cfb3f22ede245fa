package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/publish/controlrepo"
	"pulley/internal/publish/source"
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

type validateOptions struct {
	*options
	noPuppet, strict, github, adopt bool
	ref, branch, puppetfile         string
	over                            overlayFlag
}

func newValidate(o *options) *cobra.Command {
	v := validateOptions{options: o}
	cmd := &cobra.Command{
		Use:   "validate DIR",
		Short: "Check a control repository before it is published",
		Long: `validate reports everything that publish would refuse, and warns of code that behaves differently without a Puppet server.
It reads only files that Puppet on a node reads, and not those that .pulleyignore names. Errors are what ends the run of nodes.
Each finding has a rule: pulley.yaml and comments silence a rule at a place. Puppet judges manifests, hiera.yaml and data, if it
is installed. With --puppetfile, validate resolves the Puppetfile as publish does, and checks the modules, too.

With --adopt, it prints a report for a team that brings its repository: what works, what differs without a Puppet server, what
to do first, and a draft of the environment file.

EXIT STATUS
  0 no errors (warnings are possible), 1 errors, or warnings with --strict, 2 wrong usage`,
		Args: arguments(1, 1, "takes the folder of a control repository"),
		RunE: func(c *cobra.Command, args []string) error { return v.run(c, args[0]) },
	}
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&v.noPuppet, "no-puppet", false, "do not let Puppet judge manifests, hiera.yaml and data, even if it is installed")
	cmd.Flags().BoolVar(&v.strict, "strict", false, "treat warnings as errors, except those about vendored modules")
	cmd.Flags().BoolVar(&v.github, "github", false, "print the findings as annotations for a GitHub workflow")
	cmd.Flags().BoolVar(&v.adopt, "adopt", false, "print a report about bringing the repository to Pulley")
	v.over.add(cmd)
	cmd.Flags().StringVar(&v.puppetfile, "puppetfile", "", "resolve the Puppetfile with auto, r10k or g10k; or ignore it (default: read the names of its modules)")
	cmd.Flags().StringVar(&v.branch, "branch", "", "with --puppetfile: branch that it follows with :control_branch (default: the branch of the folder, or --git-ref)")
	cmd.Flags().StringVar(&v.ref, "git-ref", "", "check DIR as of this branch, tag or commit, not the work tree")
	return cmd
}

func (v validateOptions) run(c *cobra.Command, dir string) error {
	if c.Flags().Changed("git-ref") && v.ref == "" { // --git-ref "$UNSET" must not check the work tree
		return cli.Usagef("--git-ref is empty: give a branch, a tag or a commit")
	}
	if v.adopt && v.github {
		return cli.Usagef("--adopt excludes --github: annotations are findings, without the report")
	}
	if err := v.over.parse(); err != nil {
		return err
	}
	resolver := source.Unresolved
	if c.Flags().Changed("puppetfile") {
		var err error
		if resolver, err = source.ParseResolver(v.puppetfile); err != nil {
			return cli.Usagef("%v", err)
		}
	}
	puppet := installedPuppet(v.noPuppet)
	r, _ := v.reporter()
	report, err := publish.Check(c.Context(), dir, publish.FolderOptions{
		Ref: v.ref, Branch: v.branch, Puppetfile: resolver, Overlays: v.over.parsed, Deadline: v.over.deadline, CacheDir: cacheDir(), Puppet: puppet, Adopt: v.adopt,
	}, r.Note)
	if err != nil {
		return err
	}
	if v.strict {
		report = report.Strict()
	}
	parsed := parsedBy(puppet, v.noPuppet)
	if _, err := os.Lstat(filepath.Join(dir, "Puppetfile")); err == nil && resolver == source.Unresolved {
		parsed += "; modules of the Puppetfile not checked: give --puppetfile auto"
	}
	if v.github {
		fmt.Fprint(v.env.Stdout, report.GitHub())
		v.showCounts(report, parsed)
	} else {
		err = v.out.Print(v.env, report, func(*cli.Table) error { v.show(report, dir, parsed); return nil })
	}
	if err == nil && report.Errors() > 0 {
		err = &cli.SilentError{Code: cli.ExitFailed}
	}
	return err
}

func (v validateOptions) show(r controlrepo.Report, dir, parsed string) {
	if r.Adoption == nil {
		v.showFindings(r, parsed)
		return
	}
	for line := range strings.Lines(r.Adoption.Text(dir)) {
		fmt.Fprintln(v.env.Stdout, cli.Clean(strings.TrimSuffix(line, "\n")))
	}
	fmt.Fprintln(v.env.Stdout)
	v.showCounts(r, parsed)
}

// installedPuppet returns the Puppet of this machine, or "".
func installedPuppet(no bool) string {
	puppet, err := exec.LookPath("puppet")
	if no || err != nil {
		return ""
	}
	return puppet
}

// parsedBy says whether Puppet judged manifests, hiera.yaml and data.
func parsedBy(puppet string, noPuppet bool) string {
	switch {
	case noPuppet:
		return "not judged by Puppet: --no-puppet"
	case puppet == "":
		return "not judged by Puppet: it is not installed here"
	}
	return "judged by Puppet"
}

// showFindings prints the findings about the repository's own code, and the number of those about vendored modules. The
// remedy of a rule follows its first finding.
func (o *options) showFindings(r controlrepo.Report, parsed string) {
	o.showEach(r.Findings)
	o.showCounts(r, parsed)
}

// showErrors is like showFindings without the warnings: an operator whose folder is refused searches the errors.
func (o *options) showErrors(r controlrepo.Report, parsed string) {
	o.showEach(slices.DeleteFunc(slices.Clone(r.Findings), func(f controlrepo.Finding) bool { return f.Severity != controlrepo.Error }))
	o.showCounts(r, parsed)
}

func (o *options) showEach(findings []controlrepo.Finding) {
	vendored, shown := 0, map[string]bool{}
	for _, f := range findings {
		if f.Vendored {
			vendored++
			continue
		}
		fmt.Fprintln(o.env.Stdout, cli.Clean(f.String()))
		if f.Hint != "" && !shown[f.Hint] {
			fmt.Fprintln(o.env.Stdout, "  "+cli.Clean(f.Hint))
			shown[f.Hint] = true
		}
	}
	if vendored > 0 {
		fmt.Fprintf(o.env.Stdout, "%s about vendored modules: -o json lists them\n", cli.Count(vendored, "warning"))
	}
}

func (o *options) showCounts(r controlrepo.Report, parsed string) {
	counts := cli.Count(r.Files, "file") + ", " + cli.Count(r.Errors(), "error") + ", " + cli.Count(r.Warnings(), "warning")
	if r.Silenced > 0 {
		counts += fmt.Sprintf(", %d silenced", r.Silenced)
	}
	fmt.Fprintf(o.env.Stdout, "%s; %s\n", counts, parsed)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
)

func newPuppetserver(o *options) *cobra.Command {
	return group("puppetserver", "Check existing Puppet servers, and manage certificates at their CA", `Work on the Puppet servers and the CA that an environment file names. The verbs connect to these servers only, as the certificate in the
folder of --puppet-credentials. docs/puppet-server.md describes how to make it, and the rights that it needs.`,
		newPuppetserverCheck(o), newPuppetserverList(o), newPuppetserverSign(o), newPuppetserverClean(o), newPuppetserverRevoke(o))
}

// puppetFlags select the servers, and the certificate with which they are used.
type puppetFlags struct {
	*options
	file        envFileFlags
	credentials string
}

func (f *puppetFlags) add(c *cobra.Command) {
	f.file.add(c)
	c.Flags().StringVar(&f.credentials, "puppet-credentials", "", "folder with cert.pem, key.pem and ca.pem: a certificate of the Puppet CA, its key, and the CA's certificates")
}

// open returns clients of the servers of an environment file, and its bootstrap environment.
func (f *puppetFlags) open(file string, needsCA bool) (site puppetserver.Site, bootstrap string, err error) {
	if f.credentials == "" {
		return site, "", cli.Usagef("missing --puppet-credentials DIR\ngive the folder with cert.pem, key.pem and ca.pem")
	}
	e, err := f.readEnvironment(file, f.file)
	if err != nil {
		return site, "", err
	}
	switch {
	case len(e.Puppet.Servers) == 0:
		return site, "", fmt.Errorf("cannot use %s: it names no Puppet servers\nwrite `puppet: {servers: {eu1: {address: 10.0.0.1}}}` into it", file)
	case needsCA && e.Puppet.CA.URL == "":
		return site, "", fmt.Errorf("cannot use %s: it names no CA\nwrite `ca: {url: https://HOST:8140}` into its puppet settings", file)
	}
	own, err := puppetserver.LoadCredentials(f.credentials)
	if err != nil {
		return site, "", err
	}
	site, err = puppetserver.Open(&e.Puppet, own, f.env.Now)
	return site, e.Puppet.Bootstrap, err
}

// shownCheck is the output of `pulley puppetserver check -o json`. docs/json.md describes it.
type shownCheck struct {
	Worst    puppetserver.Severity `json:"worst"`
	Findings []shownFinding        `json:"findings"`
}

type shownFinding struct {
	puppetserver.Finding
	Sentence string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
}

// revokedFile is the certificate of --test-crl, kept for later checks.
const revokedFile = "revoked.pem"

func newPuppetserverCheck(o *options) *cobra.Command {
	f := puppetFlags{options: o}
	var compile []string
	var facts string
	var testCRL bool
	cmd := &cobra.Command{
		Use: "check FILE", Short: "Check existing Puppet servers and their CA", Args: arguments(1, 1, "takes an environment file"),
		Long: `Check whether the servers and the CA of an environment file answer, which versions they have, and whether their clocks agree with this
machine's; whether the certificate may list, sign, revoke and clean certificates; and whether environments compile for it. The
checks change nothing.

A server refuses a revoked certificate once it has the CA's new revocation list. With --test-crl, the command makes a certificate, has the
CA revoke it, and shows it to each server. It stores the certificate in the folder of the credentials as revoked.pem. Later checks
show it again.

EXIT STATUS
  0 no problem (warnings are possible), 1 a problem, 2 wrong usage`,
		Example: `  pulley puppetserver check environments/dev.yaml --puppet-credentials /etc/pulley/puppet
  pulley puppetserver check environments/dev.yaml --puppet-credentials /etc/pulley/puppet --puppet-environment production --test-crl`,
		RunE: func(c *cobra.Command, args []string) error {
			site, bootstrap, err := f.open(args[0], testCRL)
			if err != nil {
				return err
			}
			defer site.Close()
			plan := puppetserver.Plan{Site: site, Environments: compile}
			if bootstrap != "" && !slices.Contains(compile, bootstrap) {
				plan.Environments = append(plan.Environments, bootstrap)
			}
			if plan.Facts, err = readFacts(facts); err == nil {
				plan.Revoked, err = f.revoked(c.Context(), site.CA, testCRL)
			}
			if err != nil {
				return err
			}
			found, err := puppetserver.Check(c.Context(), plan, o.env.Now())
			return errors.Join(err, f.showCheck(found))
		},
	}
	f.add(cmd)
	cmd.Flags().StringArrayVar(&compile, "puppet-environment", nil, "environment of the servers to compile for the certificate; may be repeated (the file's bootstrap environment is always compiled)")
	cmd.Flags().StringVar(&facts, "facts", "", "JSON file of facts for these catalogs, as of `facter -j` (default: no facts)")
	cmd.Flags().BoolVar(&testCRL, "test-crl", false, "revoke a certificate that is made for it, and test whether each server refuses it")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// maxFacts limits a file of facts.
const maxFacts = 16 << 20

func readFacts(file string) (facts map[string]any, err error) {
	if file == "" {
		return nil, nil
	}
	b, err := bounded.ReadFile(file, maxFacts)
	if err == nil {
		err = json.Unmarshal(b, &facts)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the facts: %w", err)
	}
	return facts, nil
}

// revoked returns the certificate of an earlier --test-crl, or makes a new one and stores it.
func (f *puppetFlags) revoked(ctx context.Context, ca *puppetserver.Client, renew bool) (*pki.Identity, error) {
	file := filepath.Join(f.credentials, revokedFile)
	if !renew {
		i, err := pki.LoadIdentity(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%w\nrun the command with --test-crl, which makes the file again", err)
		}
		return &i, nil
	}
	i, err := ca.Revocation(ctx)
	if err == nil {
		err = i.Save(file)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot test the revocation lists: %w", err)
	}
	return &i, nil
}

func (f *puppetFlags) showCheck(found []puppetserver.Finding) error {
	shown := shownCheck{Worst: puppetserver.Worst(found), Findings: []shownFinding{}}
	for _, one := range found {
		shown.Findings = append(shown.Findings, shownFinding{one, one.Sentence(), one.Remedy()})
	}
	err := f.out.Print(f.env, shown, func(t *cli.Table) error {
		t.Row("SERVER", "CHECK", "RESULT", "TEXT")
		for _, s := range shown.Findings {
			t.Row(s.Server, strings.ReplaceAll(s.Check, "_", " "), string(s.Severity), s.Sentence)
		}
		return nil
	})
	if err == nil && f.out.ForPeople() {
		var told []string
		for _, s := range shown.Findings {
			if s.Remedy != "" && s.Severity != puppetserver.Fine && !slices.Contains(told, s.Remedy) {
				told = append(told, s.Remedy)
				cli.Cleanf(f.env.Stdout, "%s: %s\n", s.Server, f.complete(s.Remedy))
			}
		}
	}
	if err == nil && shown.Worst == puppetserver.Problem {
		return &cli.SilentError{Code: cli.ExitFailed}
	}
	return err
}

// shownCertificate is one row of `pulley puppetserver list -o json`. docs/json.md describes it.
type shownCertificate struct {
	Name        string             `json:"name"`
	State       puppetserver.State `json:"state"`
	Fingerprint string             `json:"fingerprint"`
	Until       time.Time          `json:"until,omitzero"`
	Serial      string             `json:"serial,omitempty"`
	Names       []string           `json:"names"`
	Extensions  map[string]string  `json:"authorization_extensions,omitempty"`
}

func newPuppetserverList(o *options) *cobra.Command {
	f := puppetFlags{options: o}
	var all bool
	cmd := &cobra.Command{
		Use: "list FILE", Short: "List pending requests at the Puppet CA, or all certificates", Args: arguments(1, 1, "takes an environment file"),
		Long: "List the names that wait for a signature. With --all, list every certificate that the CA knows, with its state.",
		RunE: func(c *cobra.Command, args []string) error {
			site, _, err := f.open(args[0], true)
			if err != nil {
				return err
			}
			defer site.Close()
			known, err := site.CA.List(c.Context())
			if err != nil {
				return err
			}
			shown := []shownCertificate{}
			for _, s := range known {
				if all || s.State == puppetserver.Requested {
					shown = append(shown, shownCertificate{s.Name, s.State, s.Fingerprint, s.Until, s.Serial, append([]string{}, s.Names...), s.Extensions})
				}
			}
			slices.SortFunc(shown, func(a, b shownCertificate) int { return strings.Compare(a.Name, b.Name) })
			return o.out.Print(o.env, shown, func(t *cli.Table) error {
				if len(shown) == 0 && !all {
					fmt.Fprintln(o.env.Stdout, "no request is pending")
					return nil
				}
				t.Row("NAME", "STATE", "UNTIL", "SERIAL", "SHA-256")
				for _, s := range shown {
					until := ""
					if !s.Until.IsZero() {
						until = s.Until.Format(time.DateOnly)
					}
					t.Row(s.Name, string(s.State), until, s.Serial, s.Fingerprint)
				}
				return nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "list also signed and revoked certificates")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// maxNames limits the names of one command.
const maxNames = 1000

func newPuppetserverSign(o *options) *cobra.Command {
	f := puppetFlags{options: o}
	cmd := &cobra.Command{
		Use: "sign FILE NAME…", Short: "Sign pending requests at the Puppet CA", Args: arguments(2, 1+maxNames, "takes an environment file and names"),
		Long: `Sign the pending requests of these names. Compare the fingerprint that the command prints with the one that ` + "`puppet ssl show`" + ` prints on
the machine. A request with extensions that give rights is not signed by the CA.`,
		RunE: func(c *cobra.Command, args []string) error {
			site, _, err := f.open(args[0], true)
			if err != nil {
				return err
			}
			defer site.Close()
			o.announceDryRun()
			return each(c.Context(), args[1:], func(ctx context.Context, name string) error {
				s, err := site.CA.Status(ctx, name)
				if err == nil && (!o.dryRun || s.State != puppetserver.Requested) {
					err = site.CA.Sign(ctx, name)
				}
				if err != nil {
					return err
				}
				done := "signed"
				if o.dryRun {
					done = "would sign"
				}
				fmt.Fprintf(o.env.Stdout, "%s %s, SHA-256 %s\n", done, cli.Clean(name), cli.Clean(s.Fingerprint))
				return nil
			})
		},
	}
	f.add(cmd)
	o.addDryRun(cmd)
	return cmd
}

// each works on each name, and returns the errors of all names.
func each(ctx context.Context, names []string, do func(context.Context, string) error) error {
	var failed []error
	for _, name := range names {
		if err := do(ctx, name); err != nil {
			if ctx.Err() != nil {
				return err
			}
			failed = append(failed, errors.New(cli.Message(err))) // each with its remedy
		}
	}
	return errors.Join(failed...)
}

func newPuppetserverClean(o *options) *cobra.Command {
	return o.withdraw("clean", "Revoke certificates at the Puppet CA and delete them, with pending requests", `Revoke the certificates of these names, and delete them and their pending requests, at the CA and at the further CAs of the
environment file (also:). A machine can then request a certificate under the name again. The command may be repeated. It refuses certificates
of Puppet servers and its own. It asks for confirmation: in scripts, use --yes.`, "cleaned", func(ctx context.Context, ca *puppetserver.Client, name string) error {
		state, err := ca.Clean(ctx, name)
		if err == nil && state == "" {
			return errNothing
		}
		return err
	})
}

func newPuppetserverRevoke(o *options) *cobra.Command {
	return o.withdraw("revoke", "Revoke certificates at the Puppet CA; the names stay taken", `Revoke the certificates of these names. The names stay taken until `+"`pulley puppetserver clean`"+` deletes them. Servers refuse a revoked
certificate once they have the CA's new revocation list. The command refuses certificates of Puppet servers and its own. It asks for
confirmation: in scripts, use --yes.`, "revoked", func(ctx context.Context, ca *puppetserver.Client, name string) error {
		err := ca.Revoke(ctx, name)
		var e *puppetserver.Error
		if errors.As(err, &e) && e.Code == puppetserver.UnknownName {
			return errNothing
		}
		return err
	})
}

// errNothing is that a CA knows nothing of a name.
var errNothing = errors.New("no certificate and no request")

// withdraw is a verb that ends certificates at all CAs.
func (o *options) withdraw(verb, short, long, done string, do func(context.Context, *puppetserver.Client, string) error) *cobra.Command {
	f := puppetFlags{options: o}
	cmd := &cobra.Command{
		Use: verb + " FILE NAME…", Short: short, Long: long, Args: arguments(2, 1+maxNames, "takes an environment file and names"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			site, _, err := f.open(args[0], true)
			if err != nil {
				return err
			}
			defer site.Close()
			o.announceDryRun()
			var cas []string
			for _, ca := range site.CAs() {
				cas = append(cas, ca.URL)
			}
			question := fmt.Sprintf("The certificates of %s at %s can no longer be used.\n%s%s them?", cli.Clean(strings.Join(args[1:], ", ")), strings.Join(cas, ", "), strings.ToUpper(verb[:1]), verb[1:])
			if err := o.confirm(c.Context(), question); err != nil {
				return err
			}
			return each(c.Context(), args[1:], func(ctx context.Context, name string) error {
				var failed []error
				for _, ca := range site.CAs() {
					if err := f.withdrawAt(ctx, ca, name, verb, done, do); err != nil {
						failed = append(failed, err)
					}
				}
				return errors.Join(failed...)
			})
		},
	}
	f.add(cmd)
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

// withdrawAt does it at one CA, and prints what was done; in a dry run, what would be.
func (f *puppetFlags) withdrawAt(ctx context.Context, ca *puppetserver.Client, name, verb, done string, do func(context.Context, *puppetserver.Client, string) error) error {
	if !f.dryRun {
		err := do(ctx, ca, name)
		if errors.Is(err, errNothing) {
			fmt.Fprintf(f.env.Stdout, "%s has no certificate and no request of %s\n", ca.URL, cli.Clean(name))
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(f.env.Stdout, "%s %s at %s\n", done, cli.Clean(name), ca.URL)
		return nil
	}
	s, err := ca.Status(ctx, name)
	var e *puppetserver.Error
	switch {
	case errors.As(err, &e) && e.Code == puppetserver.UnknownName:
		fmt.Fprintf(f.env.Stdout, "%s has no certificate and no request of %s\n", ca.URL, cli.Clean(name))
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(f.env.Stdout, "would %s %s at %s: %s, SHA-256 %s\n", verb, cli.Clean(name), ca.URL, s.State, cli.Clean(s.Fingerprint))
	return nil
}

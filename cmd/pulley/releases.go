package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/release/trust"
)

// releasesCommand shows releases.
type releasesCommand struct{ *options }

func newReleases(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "releases", Short: "List the published releases, newest version first",
		Long: `releases lists the published releases, the newest version first. It reports unreadable records and lists the others.`,
		Args: arguments(0, 0, "takes no arguments, or one of its verbs"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withEtcd(c, releasesCommand{o}.releases) },
	}
	o.out.AddFlags(cmd.Flags())
	cmd.AddCommand(
		newReleasesShow(o), newReleasesDiff(o), newReleasesVerify(o), newReleasesExport(o), newReleasesPrune(o), newReleasesSign(o), newReleasesWithdraw(o),
	)
	return cmd
}

func (o releasesCommand) releases(ctx context.Context, s *etcd.DB) error {
	published, err := release.In(s).List(ctx)
	var unreadable *release.UnreadableReleases
	if errors.As(err, &unreadable) {
		for _, err := range unreadable.Errors {
			cli.Complain(o.env, program, fmt.Errorf("warning: the list is incomplete: %w", err))
		}
		err = nil
	}
	if err != nil {
		return err
	}
	withdrawn, err := release.In(s).Withdrawals(ctx)
	if err != nil {
		return err
	}
	var all []publish.Listed
	for _, r := range slices.Backward(published) {
		all = append(all, publish.List(r, withdrawn))
	}
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		if len(all) == 0 && unreadable == nil {
			fmt.Fprintln(o.env.Stdout, "no release is published\npublish one with `pulley publish DIR --version 1.0.0`")
			return nil
		}
		t.Row("VERSION", "REPOSITORY", "TREE", "FILES", "SIZE", "STORED", "SIGNED", "PUBLISHED", "BY", "COMMIT", "MESSAGE")
		for _, r := range all {
			commit := fmt.Sprintf("%.10s", r.Commit)
			if r.Dirty {
				commit += "+"
			}
			signed := "no"
			if len(r.Signatures) > 0 {
				signed = "yes"
			}
			t.Row(r.Version, r.Origin(), fmt.Sprintf("%.12s", r.Content.Tree), strconv.Itoa(r.Content.Files), cli.Bytes(r.Content.Bytes),
				cli.Bytes(r.Added()), signed, cli.Ago(o.env.Now(), r.At), r.Author, commit, noteOf(r))
		}
		return nil
	})
}

// noteOf is the message of a release, after the reason of its withdrawal.
func noteOf(r publish.Listed) string {
	notes := make([]string, 0, 3)
	if r.Withdrawn != nil {
		notes = append(notes, "withdrawn by "+r.Withdrawn.By+because(string(r.Withdrawn.Why)))
	}
	if r.PuppetEnvironment != "" {
		notes = append(notes, referenced(r.Release))
	}
	if r.Message != "" {
		notes = append(notes, string(r.Message))
	}
	return strings.Join(notes, "; ")
}

func newReleasesWithdraw(o *options) *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use: "withdraw VERSION -m REASON", Short: "Withdraw a release, for example one with a bug",
		Long: `withdraw stops promotions of a release: a constraint such as '~> 1.1' skips it, and promote refuses its version. Nodes that have it
keep it, and rollbacks to it stay possible. --undo allows the release again.

withdraw asks for confirmation. In scripts, use --yes.`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			if o.message == "" && !undo {
				return cli.Usagef("cannot withdraw %s without a reason: give -m REASON", args[0])
			}
			if !undo {
				if err := o.mayConfirm(); err != nil {
					return err
				}
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if undo {
					err := release.In(s).Reinstate(ctx, args[0])
					if err == nil {
						fmt.Fprintf(o.env.Stdout, "%s can be promoted again\n", cli.Clean(args[0]))
					}
					return err
				}
				if err := o.confirm(ctx, fmt.Sprintf("No promotion will pick %s.\nWithdraw it?", cli.Clean(args[0]))); err != nil {
					return err
				}
				err := release.In(s).Withdraw(ctx, args[0], release.Withdrawal{By: o.env.User, Why: model.Prose(o.message), At: o.env.Now().UTC().Truncate(time.Second)})
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s is withdrawn: no promotion picks it\n", cli.Clean(args[0]))
				r, err := publish.Show(ctx, s, args[0])
				for _, u := range r.Users {
					if len(u.Scopes) > 0 {
						fmt.Fprintf(o.env.Stdout, "  it is the target of %s in %s: `pulley rollback -e %s` goes back\n", joined(u.Scopes), u.Environment, u.Environment)
					}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "end the withdrawal")
	o.addMessage(cmd, "reason, shown by releases and promote")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

func newReleasesShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show VERSION", Short: "Show the record of a release, and its users",
		Long: `show prints the record of a release, the environments that have it as a target, and the number of nodes that run it.`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				r, err := publish.Show(ctx, s, args[0])
				if r.Version == "" {
					return err
				}
				return errors.Join(o.out.Print(o.env, r, func(*cli.Table) error {
					releasesCommand{o}.describeRelease(r)
					return nil
				}), err)
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o releasesCommand) describeRelease(r publish.Shown) {
	line := func(name, format string, args ...any) {
		cli.Cleanf(o.env.Stdout, fmt.Sprintf("%-11s%s\n", name, format), args...)
	}
	line("release", "%s", r.Version)
	if origin := r.Origin(); origin != "" {
		line("repository", "%s", origin)
	}
	if r.PuppetEnvironment != "" {
		line("names", "%s", referenced(r.Release))
	}
	if r.Message != "" {
		line("message", "%s", r.Message)
	}
	if r.Withdrawn != nil {
		line("withdrawn", "%s, by %s%s", cli.Ago(o.env.Now(), r.Withdrawn.At), r.Withdrawn.By, because(string(r.Withdrawn.Why)))
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
			text += ", with uncommitted changes"
		}
		line("commit", "%s", text)
	}
	for _, overlay := range r.Overlays {
		line("overlay", "%s", describeOverlay(overlay))
	}
	if r.Modules != "" {
		line("modules", "resolved by %s", r.Modules)
	}
	if len(r.Signatures) == 0 {
		line("signed by", "no key")
	}
	for _, s := range r.Signatures {
		switch s.Type {
		case "":
			line("signed by", "unreadable: nodes do not accept this signature")
		default:
			line("signed by", "%s (%s; to verify it: `pulley releases verify --signers`)", s.Key, s.Type)
		}
	}
	line("tree", "%s", r.Content.Tree)
	line("content", "%s, %s", cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes))
	c := r.Content.Chain
	line("line", "%s, position %d, with the base at %d", c.Line, c.Seq, r.Content.Base.Seq)
	fetch := cli.Bytes(r.Cold) + " without a release on disk"
	if c.Delta != nil {
		fetch += ", " + cli.Bytes(c.Delta.Size) + " with the previous release"
	}
	line("to fetch", "%s", fetch)
	if len(r.Users) == 0 {
		line("used by", "no environment")
	}
	for _, u := range r.Users {
		wants := "no target names it"
		if len(u.Scopes) > 0 {
			wants = "the target of " + joined(u.Scopes)
		}
		line("used by", "%s: %s; %s on it", u.Environment, wants, cli.Count(u.Nodes, "node"))
	}
}

func newReleasesDiff(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff FROM TO [PATH...]",
		Short: "List the files that differ between two releases",
		Long: `diff lists the files that were added (A), removed (D), changed (M) or renamed (R) from one release to the other. Paths
narrow the list to files, or to the contents of folders. Without paths, diff also lists the modules of a Puppetfile whose
version or commit differs.

To see the lines that differ, export both releases and compare the folders.

EXIT STATUS
  0 done, whether they differ or not; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley releases diff 1.3.0 1.4.0 manifests hieradata
  pulley releases export 1.3.0 --to old && pulley releases export 1.4.0 --to new && diff -ru old new`,
		Args: arguments(2, 1<<20, "takes two versions, and optional paths"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				r, err := publish.Compare(ctx, release.In(s), args[0], args[1], args[2:])
				if err != nil {
					return err
				}
				return o.out.Print(o.env, r, func(t *cli.Table) error {
					releasesCommand{o}.showComparison(t, r, args[2:])
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o releasesCommand) showComparison(t *cli.Table, r publish.Comparison, paths []string) {
	for _, of := range [][2]string{{r.From, r.FromEnvironment}, {r.To, r.ToEnvironment}} {
		if of[1] != "" {
			fmt.Fprintf(o.env.Stdout, "the code of %s (environment %s) is on the Puppet server: only the files that nodes read beside it are compared\n", of[0], of[1])
		}
	}
	letters := map[publish.ChangeKind]string{publish.Added: "A", publish.Removed: "D", publish.Changed: "M", publish.Renamed: "R"}
	switch {
	case len(r.Changes) == 0 && len(paths) > 0:
		cli.Cleanf(o.env.Stdout, "no differences in %s\n", strings.Join(paths, ", "))
		return
	case len(r.Changes) == 0:
		fmt.Fprintf(o.env.Stdout, "%s and %s have the same files\n", r.From, r.To)
		return
	}
	t.Row("", "PATH", "NOTE")
	for _, f := range r.Changes {
		t.Row(letters[f.Change], publish.ShownName(f.Path), f.Describe())
	}
	for _, m := range r.Modules {
		t.Row("", "module "+m.Name, m.Describe())
	}
}

func newReleasesVerify(o *options) *cobra.Command {
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
				ref, err := o.fleet.Ref(o.env)
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
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				r, progress := o.reporter()
				defer progress.Done()
				found, err := publish.Verify(ctx, s, args, signatures, r)
				if err != nil {
					return err
				}
				progress.Done()
				return releasesCommand{o}.showAudit(found, signatures != nil)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&files.signers, "signers", "", "allowed_signers file, as nodes have it, to verify signatures by")
	cmd.Flags().StringVar(&files.revoked, "revoked", "", "file of revoked keys, one public key per line")
	return cmd
}

func (o releasesCommand) showAudit(a publish.Audit, signed bool) error {
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

type exportOptions struct {
	*options
	to, record, mirror string
}

func newReleasesExport(o *options) *cobra.Command {
	e := exportOptions{options: o}
	cmd := &cobra.Command{
		Use:   "export VERSION --to DIR|FILE.tar[.gz]",
		Short: "Write a release to a folder, a tar file or a mirror, or its record to a file",
		Long: `export writes the content of a release. It checks the content as a node does.

  --to DIR          a new or empty folder
  --to FILE.tar     a tar file, the same bytes each time; also .tar.gz and .tgz
  --record FILE     its record, and FILE.sig with its signatures for ssh-keygen -Y verify
  --mirror DIR      all files that an installation needs, for any web server; without a version, of all releases. Undamaged
                    files stay, even if etcd's copies are damaged. export removes nothing`,
		Args: arguments(0, 1<<20, "takes one version; --mirror takes any number"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case e.to == "" && e.record == "" && e.mirror == "":
				return cli.Usagef("give --to, --record or --mirror")
			case e.mirror != "" && (e.to != "" || e.record != ""):
				return cli.Usagef("--mirror excludes --to and --record")
			case publish.CheckExport(e.to) != nil:
				return cli.Usagef("%v", publish.CheckExport(e.to))
			case e.mirror == "" && len(args) != 1:
				return cli.Usagef("`%s` takes one version with --to or --record", c.CommandPath())
			}
			return e.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if e.mirror != "" {
					return e.exportMirror(ctx, s, args)
				}
				return e.exportRelease(ctx, s, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&e.to, "to", "", "folder or tar file to write the release to")
	cmd.Flags().StringVar(&e.record, "record", "", "file to write its record to")
	cmd.Flags().StringVar(&e.mirror, "mirror", "", "folder of a mirror to bring up to date")
	return cmd
}

func (e exportOptions) exportRelease(ctx context.Context, s *etcd.DB, version string) error {
	r, err := release.In(s).Get(ctx, version)
	if err != nil {
		return err
	}
	if e.record != "" {
		signed, err := publish.ExportRecord(r, e.record)
		if err != nil {
			return err
		}
		if signed {
			fmt.Fprintf(e.env.Stdout, "the record of %s is in %s, its signatures are in %s.sig; to verify the first signature:\n"+
				"ssh-keygen -Y verify -f allowed_signers -I NAME@ENVIRONMENT -n pulley-release -s %s.sig < %s\n",
				r.Version, e.record, e.record, e.record, e.record)
		} else {
			fmt.Fprintf(e.env.Stdout, "the record of %s is in %s; it is not signed\n", r.Version, e.record)
		}
	}
	if e.to == "" {
		return nil
	}
	if err := publish.ExportTree(ctx, release.In(s), r, e.to); err != nil {
		return err
	}
	fmt.Fprintf(e.env.Stdout, "%s is in %s: %s, %s, tree %.12s\n",
		version, e.to, cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes), r.Content.Tree)
	return nil
}

func (e exportOptions) exportMirror(ctx context.Context, s *etcd.DB, versions []string) error {
	r, progress := e.reporter()
	defer progress.Done()
	done, err := publish.ExportMirror(ctx, release.In(s), e.mirror, versions, r)
	if err != nil {
		return err
	}
	progress.Done()
	fmt.Fprintf(e.env.Stdout, "%s has %s: %s, %s of them new with %s\n", e.mirror, cli.Count(done.Releases, "release"),
		cli.Count(done.Files, "file"), cli.Count(done.New, "file"), cli.Bytes(done.NewBytes))
	if done.Unreadable != nil {
		return fmt.Errorf("cannot mirror all releases: %w", done.Unreadable)
	}
	return nil
}

func newReleasesSign(o *options) *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "sign VERSION --sign-key FILE",
		Short: "Add a signature to a release, or replace its signatures",
		Long: `sign adds a signature to a published release: to one without a signature, or before a signer is replaced by another. The
record stays the same. A new signature replaces an older one of the same key; a release has at most 8 signatures. FILE is a
private key, or a public key whose private part is in an ssh-agent or a hardware key. --replace asks for confirmation: in
scripts, use --yes.`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			if o.sign.key(o.env) == nil {
				return cli.Usagef("give --sign-key FILE or set PULLEY_SIGN_KEY")
			}
			if replace {
				if err := o.mayConfirm(); err != nil {
					return err
				}
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if replace {
					if err := o.confirm(ctx, fmt.Sprintf("All signatures of %s will be removed.\nReplace them?", cli.Clean(args[0]))); err != nil {
						return err
					}
				}
				return releasesCommand{o}.signRelease(ctx, s, args[0], replace)
			})
		},
	}
	o.sign.add(cmd)
	cmd.Flags().Lookup("sign-key").Usage = "SSH key to sign with [PULLEY_SIGN_KEY]"
	cmd.Flags().BoolVar(&replace, "replace", false, "remove the existing signatures")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

func (o releasesCommand) signRelease(ctx context.Context, s *etcd.DB, version string, replace bool) error {
	sign := o.sign.key(o.env).Sign
	if err := promotion.Retry(func() error { return release.In(s).Sign(ctx, version, sign, !replace) }); err != nil {
		return err
	}
	r, err := release.In(s).Get(ctx, version)
	if err != nil {
		return err
	}
	if o.dryRun {
		fmt.Fprintf(o.env.Stdout, "would sign %s, which has %s\n", r.Version, cli.Count(len(trust.SignedBy(r.Signatures)), "signature"))
		return nil
	}
	all := trust.SignedBy(r.Signatures)
	fmt.Fprintf(o.env.Stdout, "%s has %s:\n", r.Version, cli.Count(len(all), "signature"))
	for _, one := range all {
		cli.Cleanf(o.env.Stdout, "  %s (%s)\n", one.Key, cmp.Or(one.Type, "nodes do not accept this signature"))
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/promotion"
	"pulley/internal/publish"
	"pulley/internal/publish/source"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

type publishOptions struct {
	*options
	version, ref, branch string
	puppetfile           string
	over                 overlayFlag
	classifier           string
	noValidate, noPuppet bool
	reference            publish.Reference // without an environment: the release has its content itself
}

func newPublish(o *options) *cobra.Command {
	p := publishOptions{options: o}
	cmd := &cobra.Command{
		Use:   "publish [DIR] --version VERSION",
		Short: "Publish a folder of Puppet content as an immutable release",
		Long: `publish reads the folder, or with --git-ref the tree of a commit. It resolves the Puppetfile, validates the content as
` + "`pulley validate`" + ` does, parses the manifests if Puppet is installed, and stores in etcd what the previous release does not contain. The file .pulleyignore in the folder lists paths to
leave out. publish writes nothing into the folder. Nothing reaches a node until the release is promoted.

publish refuses an unsigned release if a stored environment has allowed signers, unless --unsigned is given.

If the version is published already with the same tree, publish adds only a missing signature. With another tree, it fails.

With --puppet-environment, publish makes a reference release: it names an environment of an existing Puppet server and contains no
code. Of DIR it contains the environment files and the hooks (validate.d, retire.d, hosts.d). Without DIR, --server is needed. One
environment belongs to one version. Signatures approve its name, and not the code on the server.

With --dry-run, publish lists the content. With a version, it also reads etcd, and refuses what publish would refuse.

EXIT STATUS
  0 published, or published already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes the folder to publish"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if len(args) == 0 && p.reference.Server == "" {
				return cli.Usagef("`%s` takes the folder to publish", c.CommandPath())
			}
			if err := p.check(c); err != nil {
				return err
			}
			dir := ""
			if len(args) > 0 {
				dir = args[0]
			} else {
				if dir, err = os.MkdirTemp("", "pulley-publish-"); err != nil {
					return err
				}
				defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			}
			if p.dryRun && p.version == "" {
				return p.show(c.Context(), nil, dir)
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error { return p.publish(ctx, s, dir) })
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version of the release, like 1.4.0, or 1.4.0+shop for a repository with a name")
	p.addMessage(cmd, "description (default: the subject of the git commit)")
	cmd.Flags().StringVar(&p.ref, "git-ref", "", "publish DIR as of this branch, tag or commit, not the work tree")
	cmd.Flags().StringVar(&p.branch, "branch", "", "branch that a Puppetfile follows with :control_branch (default: the branch of the folder, or --git-ref)")
	cmd.Flags().StringVar(&p.puppetfile, "puppetfile", string(source.Auto), "program that resolves a Puppetfile: auto, r10k, g10k or ignore")
	p.over.add(cmd)
	cmd.Flags().StringVar(&p.classifier, "external-nodes", "", "command of an external node classifier: it runs for each node of the environment files, with its name as the last argument")
	cmd.Flags().StringVar(&p.reference.Environment, "puppet-environment", "", "publish a reference release, which names this environment of a Puppet server")
	cmd.Flags().StringVar(&p.reference.Server, "server", "", "with --puppet-environment: HOST or HOST:PORT of the Puppet server, instead of those in the environment files")
	p.sign.add(cmd)
	p.sign.addUnsigned(cmd)
	cmd.Flags().BoolVar(&p.noPuppet, "no-puppet", false, "do not let Puppet judge manifests, hiera.yaml and data, even if it is installed")
	cmd.Flags().BoolVar(&p.noValidate, "no-validate", false, "publish although validate finds errors")
	o.addDryRun(cmd)
	return cmd
}

// overlayFlag is the flag --overlay, with the time that its clones may take.
type overlayFlag struct {
	texts    []string
	deadline time.Duration // also of resolving a Puppetfile
	parsed   []source.Overlay
}

func (f *overlayFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.texts, "overlay", nil, "put a second source on the folder: [FOLDER=]DIR, or [FOLDER=]GIT-URL[#REF]; may be repeated")
	cli.DurationVar(cmd.Flags(), &f.deadline, "puppetfile-timeout", source.DefaultDeadline, "how long resolving it, or cloning an overlay, may take")
}

// parse rejects invalid values.
func (f *overlayFlag) parse() error {
	if f.deadline <= 0 {
		return cli.Usagef("cannot use --puppetfile-timeout %s: give a time above 0, as in 10m", f.deadline)
	}
	f.parsed = nil
	for _, text := range f.texts {
		o, err := source.ParseOverlay(text)
		if err != nil {
			return cli.Usagef("%v", err)
		}
		f.parsed = append(f.parsed, o)
	}
	return nil
}

// check rejects invalid flags before anything is read.
func (p *publishOptions) check(c *cobra.Command) error {
	switch {
	case p.version == "" && !p.dryRun:
		return cli.Usagef("missing version: give --version 1.0.0")
	case c.Flags().Changed("git-ref") && p.ref == "": // --git-ref "$UNSET" must not publish the work tree
		return cli.Usagef("--git-ref is empty: give a branch, a tag or a commit")
	}
	if c.Flags().Changed("external-nodes") && strings.TrimSpace(p.classifier) == "" {
		return cli.Usagef("--external-nodes is empty: give a command, as in ./enc.rb")
	}
	if err := p.checkReference(c); err != nil {
		return err
	}
	if _, err := source.ParseResolver(p.puppetfile); err != nil {
		return cli.Usagef("%v", err)
	}
	if err := p.over.parse(); err != nil {
		return err
	}
	if p.version != "" {
		if _, err := release.ParseVersion(p.version); err != nil {
			return cli.Usagef("%v", err)
		}
	}
	return p.sign.check(p.env)
}

// checkReference rejects flags that have no meaning for a reference release, and invalid names.
func (p *publishOptions) checkReference(c *cobra.Command) error {
	if !c.Flags().Changed("puppet-environment") {
		if c.Flags().Changed("server") {
			return cli.Usagef("--server needs --puppet-environment NAME")
		}
		return nil
	}
	for _, flag := range []string{"branch", "puppetfile", "overlay", "external-nodes", "no-puppet"} {
		if c.Flags().Changed(flag) {
			return cli.Usagef("--%s concerns code, and a reference release has none: leave it out", flag)
		}
	}
	if err := p.reference.Check(); err != nil {
		return cli.Usagef("%v", err)
	}
	return nil
}

// read opens the folder, and prints the findings if it is not valid.
func (p publishOptions) read(ctx context.Context, dir string, r publish.Reporter, progress *cli.Progress) (*publish.Folder, error) {
	puppet := installedPuppet(p.noPuppet)
	var reference *publish.Reference
	if p.reference.Environment != "" {
		reference = &p.reference
	}
	folder, err := publish.OpenFolder(ctx, dir, publish.FolderOptions{
		Reference: reference, Ref: p.ref, Branch: p.branch, Puppetfile: source.Resolver(p.puppetfile), Deadline: p.over.deadline, Overlays: p.over.parsed, Classifier: strings.Fields(p.classifier), CacheDir: cacheDir(), NoValidate: p.noValidate, Puppet: puppet,
	}, r)
	var invalid *publish.InvalidError
	if errors.As(err, &invalid) {
		progress.Done()
		p.showErrors(invalid.Report, parsedBy(puppet, p.noPuppet))
	}
	return folder, err
}

func (p publishOptions) publish(ctx context.Context, s *etcd.DB, dir string) (err error) {
	r, progress := p.reporter()
	defer progress.Done()
	defer func() {
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			err = fmt.Errorf("cannot publish %s: interrupted\nrun the command again: it continues with the objects that are in etcd", p.version)
		}
	}()
	if p.sign.key(p.env) == nil && !p.sign.unsigned {
		if err := promotion.CheckUnsigned(ctx, specs.In(s), p.version); err != nil {
			return err
		}
	}
	if p.dryRun {
		return p.show(ctx, s, dir)
	}
	folder, err := p.read(ctx, dir, r, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	done, err := publish.Release(ctx, release.In(s), folder, publish.Wish{
		Version: p.version, Message: p.message, By: p.env.User, At: p.env.Now(), Key: p.sign.key(p.env), Cache: objectCache(),
	}, r)
	if err != nil {
		return err
	}
	progress.Done()
	p.report(done)
	return nil
}

// reporter shows the progress of package publish on one line, and its notes on lines of their own.
func (o *options) reporter() (publish.Reporter, *cli.Progress) {
	progress := cli.NewProgress(o.env)
	return publish.Reporter{
		Progress: func(p publish.Progress) { progress.Show(shownProgress(p)) },
		Note: func(n publish.Note) {
			progress.Done()
			cli.Cleanf(o.env.Stderr, "note: %s\n", n)
		},
		Pause: progress.Done,
	}, progress
}

func shownProgress(p publish.Progress) string {
	line := strings.TrimSpace(string(p.Step) + " " + p.Subject)
	switch {
	case p.Step == publish.Mirroring:
		line += fmt.Sprintf(": %s, %s new", cli.Count(p.Values, "file"), cli.Bytes(p.Bytes))
	case p.Step == publish.Verifying:
		line += fmt.Sprintf(": %s, %s", cli.Count(p.Values, "value"), cli.Bytes(p.Bytes))
	case p.Values > 0:
		line += fmt.Sprintf(": %s, %s new in etcd", cli.Count(p.Values, "object"), cli.Bytes(p.Bytes))
	}
	return line
}

// cacheDir returns the user's cache folder, or "". It does not create a missing home.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err == nil {
		_, err = os.Stat(filepath.Dir(dir))
	}
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "pulley")
}

func objectCache() string {
	if dir := cacheDir(); dir != "" {
		return filepath.Join(dir, "objects")
	}
	return ""
}

// show implements --dry-run. Without a version it needs no etcd, and s is nil.
func (p publishOptions) show(ctx context.Context, s *etcd.DB, dir string) (err error) {
	r, progress := p.reporter()
	defer progress.Done()
	from, err := p.read(ctx, dir, r, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	left, err := from.LeftOut()
	if err != nil {
		return err
	}
	there := false
	if s != nil {
		if there, err = from.Published(ctx, release.In(s), p.version); err != nil {
			return err
		}
	}
	progress.Done()
	for _, e := range from.Manifest.Entries {
		cli.Cleanf(p.env.Stdout, "%s\n", shownEntry(e))
	}
	if len(left) > 0 {
		fmt.Fprintln(p.env.Stdout, "left out:")
		table := cli.NewTable(p.env)
		for _, l := range left {
			table.Row("  "+l.Path, l.Why)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	what := dir
	if p.version != "" {
		what = p.version + " from " + dir
	}
	does := "would publish " + what
	if there {
		does = p.version + " is published already with this tree"
	}
	cli.Cleanf(p.env.Stdout, "%s: %s, %s, tree %.12s; %d left out\n", does,
		cli.Count(from.Manifest.Files(), "file"), cli.Bytes(from.Manifest.Bytes()), from.Manifest.Tree(), len(left))
	if about := describeSource(from.Facts); about != "" {
		cli.Cleanf(p.env.Stdout, "%s\n", about)
	}
	for _, o := range from.Overlays {
		cli.Cleanf(p.env.Stdout, "overlay %s\n", describeOverlay(release.Overlay{Folder: o.Folder, Source: o.Source, Commit: o.Commit, Ref: o.Ref, Dirty: o.Dirty}))
	}
	return nil
}

func shownEntry(e content.Entry) string {
	name := publish.ShownName(e.Path)
	switch e.Kind {
	case content.KindDirectory:
		return name + "/"
	case content.KindLink:
		return name + " -> " + publish.ShownName(e.Target)
	case content.KindExecutable:
		return name + "*"
	}
	return name
}

// describeSource describes the origin of a tree, or returns "" if it is unknown.
func describeSource(f source.Facts) string {
	var parts []string
	if f.Commit != "" {
		about := fmt.Sprintf("commit %.12s", f.Commit)
		if f.Ref != "" {
			about += " (" + f.Ref + ")"
		}
		if f.Dirty {
			about += " with uncommitted changes"
		}
		parts = append(parts, about)
	}
	if f.Modules != "" {
		parts = append(parts, "modules resolved by "+string(f.Modules))
	}
	return strings.Join(parts, "; ")
}

func describeOverlay(o release.Overlay) string {
	text := o.Source
	if o.Folder != "" {
		text += " in " + o.Folder
	}
	if o.Commit != "" {
		text += ", commit " + o.Commit
	}
	if o.Ref != "" {
		text += " (" + o.Ref + ")"
	}
	if o.Dirty {
		text += ", with uncommitted changes"
	}
	return text
}

// referenced describes what a reference release names.
func referenced(r release.Release) string {
	text := "environment " + r.PuppetEnvironment + " of the Puppet server"
	if r.PuppetServer != "" {
		text += " " + r.PuppetServer
	}
	return text
}

// signedNow describes the signature of what was published before.
func signedNow(now bool, by string) string {
	switch {
	case by != "":
		return "; it has a signature by " + by
	case now:
		return "; signed now"
	}
	return ""
}

func signedOrNot(signed bool) string {
	if signed {
		return "signed"
	}
	return "unsigned: nodes with allowed signers will refuse it; to sign it, publish it again with --sign-key"
}

// report prints the published release, its download size for a node, and whether nodes will accept it.
func (p publishOptions) report(done publish.Result) {
	r := done.Release
	if !done.Created {
		fmt.Fprintf(p.env.Stdout, "%s is published already with this tree %.12s%s\n", r.Version, r.Content.Tree, signedNow(done.Signed, done.SignedBy))
		return
	}
	sent := cli.Count(done.Sent, "new object")
	if r.Content.Chain.Delta != nil {
		sent += " and a delta"
	}
	fmt.Fprintf(p.env.Stdout, "published %s: %s, %s, tree %.12s; %s, %s, sent to etcd\n",
		r.Version, cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes), r.Content.Tree, sent, cli.Bytes(done.SentBytes))
	if r.PuppetEnvironment != "" {
		fmt.Fprintf(p.env.Stdout, "it names %s; its code stays there\n", referenced(r))
	} else if r.Content.Chain.Delta != nil && done.Parent != "" {
		fmt.Fprintf(p.env.Stdout, "nodes on %s fetch %s, others up to %s\n", done.Parent, cli.Bytes(r.Content.Chain.Delta.Size), cli.Bytes(r.Content.Cold()))
	} else {
		fmt.Fprintf(p.env.Stdout, "it starts a new line: nodes fetch up to %s\n", cli.Bytes(r.Content.Cold()))
	}
	if r.Dirty {
		fmt.Fprintln(p.env.Stdout, "it contains uncommitted changes")
	}
	fmt.Fprintf(p.env.Stdout, "%s\nnext: pulley promote %s -e ENVIRONMENT\n", signedOrNot(done.Signed), r.Version)
}

// signFlag is the flag --sign-key, and --unsigned of the verbs that refuse to do without.
type signFlag struct {
	file     string
	standard string // of the context
	unsigned bool
}

func (f *signFlag) addUnsigned(c *cobra.Command) {
	c.Flags().BoolVar(&f.unsigned, "unsigned", false, "do without a signature, although nodes with allowed signers refuse it")
}

func (f *signFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "sign-key", "", "SSH key to sign with [PULLEY_SIGN_KEY] (default: the context's; without one, not signed)")
}

// key returns the key, or nil without the flag.
func (f signFlag) key(e cli.Env) *trust.Key {
	if file := cmp.Or(f.file, e.Getenv("PULLEY_SIGN_KEY"), f.standard); file != "" {
		return &trust.Key{File: file}
	}
	return nil
}

// check rejects a missing file before anything is read or sent.
func (f signFlag) check(e cli.Env) error {
	if key := f.key(e); key != nil {
		return key.Check()
	}
	return nil
}

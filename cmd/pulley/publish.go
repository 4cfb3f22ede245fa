package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/controlrepo"
	"pulley/internal/source"
	"pulley/internal/store"
)

type publishOptions struct {
	*options
	version, message string
	ref, puppetfile  string
	deadline         time.Duration // of resolving a Puppetfile
	sign             signFlag
	noValidate       bool
	dryRun           bool
}

func newPublish(o *options) *cobra.Command {
	p := publishOptions{options: o}
	cmd := &cobra.Command{
		Use:   "publish DIR --version VERSION",
		Short: "put a folder of Puppet content into etcd as a release that never changes",
		Long: `publish reads the folder, or with --git-ref the tree of a commit, resolves its Puppetfile, validates it (without Puppet),
packs what the release before has not, stores what etcd lacks, and then the record of the release. What .pulleyignore in
the folder names is left out. Nothing is written in the folder, and nothing reaches a node until the release is promoted.
The same tree under the same version again changes nothing, but for a signature that it lacks and --sign-key makes; another
tree under it is an error.

EXIT STATUS
  0 published, or published already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes the folder to publish"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			if p.dryRun {
				return p.show(c.Context(), args[0])
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return p.publish(ctx, s, args[0]) })
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version of the release, like 1.4.0")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "what is in it (default: the subject of the git commit)")
	cmd.Flags().StringVar(&p.ref, "git-ref", "", "publish DIR as of this branch, tag or commit, not the work tree")
	cmd.Flags().StringVar(&p.puppetfile, "puppetfile", string(source.Auto), "what resolves a Puppetfile: auto, g10k, r10k or ignore")
	cmd.Flags().DurationVar(&p.deadline, "puppetfile-timeout", source.DefaultDeadline, "how long resolving it may take")
	p.sign.add(cmd)
	cmd.Flags().BoolVar(&p.noValidate, "no-validate", false, "publish although validate finds errors")
	cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "list what would be published and what is left out, and publish nothing")
	return cmd
}

// check refuses what can't be meant, before anything is read.
func (p publishOptions) check(c *cobra.Command) error {
	switch {
	case p.version == "" && !p.dryRun:
		return cli.Usagef("which version? give --version 1.0.0")
	case c.Flags().Changed("git-ref") && p.ref == "": // --git-ref "$UNSET" must not publish the work tree
		return cli.Usagef("which commit? --git-ref needs a branch, a tag or a commit")
	case p.deadline <= 0:
		return cli.Usagef("cannot resolve a Puppetfile in that time: give --puppetfile-timeout a time above 0, like 10m")
	}
	if _, err := source.ParseResolver(p.puppetfile); err != nil {
		return cli.Usagef("%v", err)
	}
	if p.version != "" {
		if _, err := store.ParseVersion(p.version); err != nil {
			return cli.Usagef("%v", err)
		}
	}
	if p.dryRun {
		return nil
	}
	return p.sign.check(p.env)
}

// reading is a folder that is fit to be published. It is to be closed.
type reading struct {
	*source.Folder
	manifest *content.Manifest
}

// read makes the folder ready, validates it, and lists what is in it.
func (p publishOptions) read(ctx context.Context, dir string, progress *cli.Progress) (_ *reading, err error) {
	progress.Show("reading " + dir)
	folder, err := source.Open(ctx, dir, source.Options{
		Ref: p.ref, Modules: source.Resolver(p.puppetfile), Deadline: p.deadline, CacheDir: cacheDir(), Progress: progress.Show,
	})
	if err != nil {
		return nil, err
	}
	r := &reading{Folder: folder}
	defer func() {
		if err != nil {
			err = errors.Join(err, folder.Close())
		}
	}()
	for _, note := range folder.Notes {
		p.note(progress, note)
	}
	// First the tree: it names what no release can have, and validate could not read.
	if r.manifest, err = content.ReadTree(folder.Root, folder.Ignore); err != nil {
		return nil, err
	}
	if !p.noValidate {
		progress.Show("validating " + dir)
		if err := p.validatePublished(ctx, dir, folder, progress); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// validatePublished looks into what is published only: what is left out may be wrong.
func (p publishOptions) validatePublished(ctx context.Context, dir string, folder *source.Folder, progress *cli.Progress) error {
	ctx, cancel := context.WithTimeout(ctx, validateDeadline)
	defer cancel()
	report, err := controlrepo.Validate(ctx, folder.Root, controlrepo.Options{Ignore: folder.Ignore})
	if err != nil {
		return err
	}
	if n := report.Errors(); n > 0 {
		progress.Done()
		p.showFindings(report, "manifests not parsed: publish does without Puppet")
		return fmt.Errorf("cannot publish %s: it has %s\n--no-validate publishes it all the same", dir, cli.Count(n, "error"))
	}
	return nil
}

func (p publishOptions) publish(ctx context.Context, s *store.Store, dir string) (err error) {
	progress := cli.NewProgress(p.env)
	defer progress.Done()
	defer func() {
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			err = fmt.Errorf("cannot publish %s: it was interrupted\npublish again: what was sent is used", p.version)
		}
	}()
	from, err := p.read(ctx, dir, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	mark, err := s.Publishing(ctx, p.env.User)
	if err != nil {
		return err
	}
	defer func() {
		if closing := mark.Close(); closing != nil { // the release is there, or what kept it from that is the error
			p.note(progress, closing.Error())
		}
	}()
	w := &writing{publishOptions: p, store: s, mark: mark, from: from, progress: progress, cache: source.NewCached(s, objectCache())}
	done, err := w.write(ctx)
	if err != nil {
		return err
	}
	progress.Done()
	if trimming := w.cache.Trim(source.MaxCacheBytes); trimming != nil {
		p.note(progress, trimming.Error())
	}
	p.report(done)
	return nil
}

// note is what an operator should know although all goes on.
func (o *options) note(progress *cli.Progress, text string) {
	progress.Done()
	cli.Cleanf(o.env.Stderr, "note: %s\n", text)
}

// cacheDir is the user's own folder for what can be had again; "" when there is none. A home that does not exist is not
// made.
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

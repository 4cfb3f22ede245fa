package main

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/store"
)

type publishOptions struct {
	*options
	version, message string
	noValidate       bool
}

func newPublish(o *options) *cobra.Command {
	p := publishOptions{options: o}
	cmd := &cobra.Command{
		Use:   "publish DIR --version VERSION",
		Short: "put a folder of Puppet content into etcd as a release that never changes",
		Long: `publish validates the folder (without Puppet), packs it, stores what etcd lacks, and then the record of the release.
Nothing reaches a node until the release is promoted. The same folder under the same version again changes nothing;
another folder under it is an error.

EXIT STATUS
  0 published, or published already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes the folder to publish"),
		RunE: func(c *cobra.Command, args []string) error {
			if p.version == "" {
				return cli.Usagef("which version? give --version 1.0.0")
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return p.publish(ctx, s, args[0]) })
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version of the release, like 1.4.0")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "what is in it (default: the subject of the git commit)")
	cmd.Flags().BoolVar(&p.noValidate, "no-validate", false, "publish although validate finds errors")
	return cmd
}

func (p publishOptions) publish(ctx context.Context, s *store.Store, dir string) error {
	if _, err := store.ParseVersion(p.version); err != nil {
		return err
	}
	if !p.noValidate {
		report, _, err := p.validate(ctx, dir, true)
		if err != nil {
			return err
		}
		if n := report.Errors(); n > 0 {
			p.showFindings(report, "manifests not parsed: publish does without Puppet")
			return fmt.Errorf("cannot publish %s: it has %s\n--no-validate publishes it all the same", dir, cli.Count(n, "error"))
		}
	}
	manifest, err := content.ReadTree(dir, ignored)
	if err != nil {
		return err
	}
	var looked, sent int
	var sentBytes int64
	progress := cli.NewProgress(p.env)
	defer progress.Done()
	record, err := content.Build(dir, manifest, func(o content.Object, b []byte) error {
		wrote, err := s.PutObject(ctx, o.Hash, b)
		if wrote {
			sent++
			sentBytes += o.Size
		}
		looked++
		progress.Show(fmt.Sprintf("publishing %s: %s, %s new to etcd", p.version, cli.Count(looked, "object"), cli.Bytes(sentBytes)))
		return err
	})
	if err != nil {
		return err
	}
	progress.Done()
	r := store.Release{Version: p.version, Content: record, Author: p.env.User, Message: p.message, At: p.env.Now().UTC().Truncate(time.Second)}
	describe(ctx, dir, &r)
	created, err := s.PutRelease(ctx, r)
	if err != nil {
		return err
	}
	if !created {
		fmt.Fprintf(p.env.Stdout, "%s is published already, with this very tree %.12s\n", r.Version, record.Tree)
		return nil
	}
	fmt.Fprintf(p.env.Stdout, "published %s: %s, %s, tree %.12s; %s, %s, went to etcd\nnext: pulley promote %s -e ENVIRONMENT\n",
		r.Version, cli.Count(record.Files, "file"), cli.Bytes(record.Bytes), record.Tree, cli.Count(sent, "new object"), cli.Bytes(sentBytes), r.Version)
	return nil
}

// ignored leaves out what is no content: what editors and version control leave behind.
func ignored(name string, dir bool) bool {
	base := path.Base(name)
	return !dir && (strings.HasSuffix(base, "~") || strings.HasSuffix(base, ".swp") || base == ".DS_Store")
}

// describe adds what git knows of the folder; a folder that is no work tree has nothing to add.
func describe(ctx context.Context, dir string, r *store.Release) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return
	}
	r.Commit = commit
	changes, err := git("status", "--porcelain", "--", ".")
	r.Dirty = err != nil || changes != ""
	if subject, err := git("log", "-1", "--format=%s"); err == nil && r.Message == "" {
		r.Message = subject
	}
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

type agentsPublishOptions struct {
	*options
	version, message string
	sign             signFlag
}

func newAgentsPublish(o *options) *cobra.Command {
	p := agentsPublishOptions{options: o}
	cmd := &cobra.Command{
		Use:   "publish FILE ...",
		Short: "Publish a version of pulley-agent, one program for each platform",
		Long: `publish stores builds of one version of pulley-agent, one for each platform, as a version that never changes. The files name
their platforms. publish starts the file that runs on this machine with --version for its version. Nothing reaches a node
until the version is promoted.

EXIT STATUS
  0 published, or published already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 16, "takes the files of one version, one for each platform"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.sign.check(p.env); err != nil {
				return err
			}
			if p.version != "" {
				if _, err := store.ParseVersion(p.version); err != nil {
					return cli.Usagef("%v", err)
				}
			}
			programs, err := publish.ReadPrograms(c.Context(), args, p.version)
			if errors.Is(err, publish.ErrNoVersion) {
				return cli.Usagef("%v\ngive --version 1.4.0", err)
			}
			if err != nil {
				return err
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return p.publish(ctx, s, programs) })
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version, like 1.4.0 (default: that of the file that runs on this machine)")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "description")
	p.sign.add(cmd)
	return cmd
}

func (p *agentsPublishOptions) publish(ctx context.Context, s *store.Store, programs publish.Programs) error {
	r, progress := p.reporter()
	defer progress.Done()
	done, err := publish.Program(ctx, s, programs, publish.Wish{
		Version: programs.Version, Message: p.message, By: p.env.User, At: p.env.Now(), Key: p.sign.key(p.env),
	}, r)
	if err != nil {
		return err
	}
	progress.Done()
	existing := fmt.Sprintf("agent %s is published already, with these very programs", programs.Version)
	switch {
	case done.Created && done.Signed:
		existing = p.created(programs, done) + "signed"
	case done.Created:
		existing = p.created(programs, done) + "unsigned: nodes with allowed signers will refuse it; to sign it, publish it again with --sign-key"
	case done.SignedBy != "":
		existing += "; it has a signature by " + done.SignedBy
	case done.Signed:
		existing += "; signed now"
	}
	fmt.Fprintln(p.env.Stdout, existing)
	return nil
}

func (p *agentsPublishOptions) created(programs publish.Programs, done publish.ProgramResult) string {
	return fmt.Sprintf("agent %s is published for %s, %s in etcd\n", programs.Version, cli.Count(len(programs.Files), "platform"), cli.Bytes(done.Stored))
}

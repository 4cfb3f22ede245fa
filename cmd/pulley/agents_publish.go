package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/content"
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
		Short: "put programs of pulley-agent, one for each platform, into etcd as a version that never changes",
		Long: `publish stores one or more builds of the same version of pulley-agent, each for another platform; the files themselves tell
which. A file that runs on this machine tells its version, too: it is started once, with --version. Nothing reaches a node
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
			programs, err := p.read(c.Context(), args)
			if err != nil {
				return err
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return p.publish(ctx, s, programs) })
		},
	}
	cmd.Flags().StringVar(&p.version, "version", "", "version, like 1.4.0 (default: what the file that runs here says of itself)")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "what is in it")
	p.sign.add(cmd)
	return cmd
}

// read looks into the files, and finds out their version.
func (p *agentsPublishOptions) read(ctx context.Context, files []string) (programs map[string][]byte, err error) {
	programs = map[string][]byte{}
	from := map[string]string{}
	for _, file := range files {
		fail := func(err error) (map[string][]byte, error) { return nil, fmt.Errorf("cannot publish %s: %w", file, err) }
		platform, err := platformOf(file)
		if err != nil {
			return fail(err)
		}
		if other, ok := from[platform]; ok {
			return fail(fmt.Errorf("it is for %s, and so is %s", platform, other))
		}
		from[platform] = file
		if programs[platform], err = readProgram(file); err != nil {
			return fail(err)
		}
		if platform != runtime.GOOS+"/"+runtime.GOARCH {
			continue
		}
		said, err := saysItsVersion(ctx, file)
		if err != nil {
			return fail(err)
		}
		switch {
		case p.version == "":
			if _, err := store.ParseVersion(said); err != nil {
				return fail(fmt.Errorf("it says that it is version %q, which is not like 1.4.0\nbuild it with a version: make build VERSION=1.4.0", said))
			}
			p.version = said
		case p.version != said: // nodes say which version they run by what it says of itself
			return fail(fmt.Errorf("it says that it is version %q, and not %s\nleave out --version, or build it with that one: make build VERSION=%s", said, p.version, p.version))
		}
	}
	if p.version == "" {
		return nil, cli.Usagef("which version? none of the files runs on this machine (%s/%s), so give --version 1.4.0", runtime.GOOS, runtime.GOARCH)
	}
	return programs, nil
}

// platformOf is what a program was built for, as the Go linker wrote it down: GOOS/GOARCH.
func platformOf(file string) (string, error) {
	info, err := buildinfo.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err != nil {
		return "", fmt.Errorf("it is no program that go built: %w", err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] == "" || settings["GOARCH"] == "" {
		return "", errors.New("it does not say for which platform it was built")
	}
	return settings["GOOS"] + "/" + settings["GOARCH"], nil
}

func readProgram(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, content.MaxProgramBytes+1))
	if err == nil && len(b) > content.MaxProgramBytes {
		err = fmt.Errorf("it has more than the %s that a program may have", cli.Bytes(content.MaxProgramBytes))
	}
	return b, err
}

// saysItsVersion starts the program, for as short as that takes.
func saysItsVersion(ctx context.Context, file string) (string, error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin"}, "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("it can't say its version: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(line, "pulley-agent version ")
	if !ok {
		return "", fmt.Errorf("it is no pulley-agent: asked for its version it says %q", cli.Clean(line))
	}
	return plainVersion(strings.TrimSpace(version)), nil
}

func (p *agentsPublishOptions) publish(ctx context.Context, s *store.Store, programs map[string][]byte) error {
	progress := cli.NewProgress(p.env)
	defer progress.Done()
	mark, err := s.Publishing(ctx, p.env.User)
	if err != nil {
		return err
	}
	defer func() {
		if closing := mark.Close(); closing != nil { // the release is there, or what kept it from that is the error
			p.note(progress, closing.Error())
		}
	}()
	r := store.AgentRelease{
		Version: p.version, Platforms: map[string]content.Program{}, Message: p.message, Author: p.env.User, At: p.env.Now().UTC().Truncate(time.Second),
	}
	var stored int64
	for platform, program := range programs {
		progress.Show("packing " + p.version + " for " + platform)
		packed, err := content.PackProgram(program, func(hash string, b []byte) error {
			progress.Show("publishing " + p.version + " for " + platform)
			_, err := s.PutObject(ctx, hash, b)
			return err
		})
		if err != nil {
			return err
		}
		r.Platforms[platform] = packed
		stored += packed.Stored()
	}
	progress.Done() // ssh-keygen may ask for a passphrase
	created, err := s.PutAgent(ctx, mark, r, p.sign.signer(p.env))
	if err != nil {
		return err
	}
	if !created {
		return p.already(ctx, s)
	}
	signed := "unsigned: nodes that have allowed signers will refuse it; give --sign-key and publish it again"
	if p.sign.given(p.env) {
		signed = "signed"
	}
	fmt.Fprintf(p.env.Stdout, "agent %s is published for %s, %s in etcd\n%s\n", p.version, cli.Count(len(programs), "platform"), cli.Bytes(stored), signed)
	return nil
}

// already gives a version that is there, with these very programs, the signature that it lacks.
func (p *agentsPublishOptions) already(ctx context.Context, s *store.Store) error {
	there := fmt.Sprintf("agent %s is published already, with these very programs", p.version)
	if !p.sign.given(p.env) {
		fmt.Fprintln(p.env.Stdout, there)
		return nil
	}
	r, err := s.Agent(ctx, p.version)
	if err != nil {
		return err
	}
	if by := p.sign.signed(p.env, r.Signatures); by != "" {
		fmt.Fprintf(p.env.Stdout, "%s; it has a signature by %s\n", there, by)
		return nil
	}
	if err := retryConflicts(func() error { return s.SignAgent(ctx, p.version, p.sign.signer(p.env)) }); err != nil {
		return err
	}
	fmt.Fprintf(p.env.Stdout, "%s; signed now\n", there)
	return nil
}

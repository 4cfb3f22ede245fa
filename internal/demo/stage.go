package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pulley/internal/child"
	"pulley/internal/machines/drivers/local"
	"pulley/internal/model"
)

// stage is the fleet of the story: an etcd and machines, all of which die with this process.
type stage struct {
	self, agent string   // the programs
	env         []string // of the operator's commands
	dir         string   // everything that the demo writes on the host is below it
	endpoint    string
	server, pin string   // where machines join, and the fingerprint of its CA
	nodes       []string // in the order of their first boots

	mu       sync.Mutex
	machines map[string]*local.Machine
	etcd     *child.Child
	gone     <-chan struct{} // closed when etcd has ended
	closing  atomic.Bool
	broke    chan error // the first part that ended by itself
}

const (
	repoDir        = "repo"
	signKey        = "operator-key"
	signersFile    = "allowed_signers"
	logDir         = "log"
	etcdDeadline   = 30 * time.Second
	etcdGrace      = 5 * time.Second
	commandTimeout = 5 * time.Minute // also of `rollout watch`, which waits for two runs of Puppet
	bootTimeout    = 2 * time.Minute
	waitTimeout    = 2 * time.Minute
	pollInterval   = 700 * time.Millisecond

	schedule        = "@every 2s"
	enforceInterval = 20 * time.Second
)

// What `pulley serve` prints about joins.
var (
	joinsAt = regexp.MustCompile(`serve at (https://[0-9.:]+) with`)
	pins    = regexp.MustCompile(`fingerprints? (?:are|is) (sha256:[0-9a-f]{64})`)
)

// startEtcd runs `pulley serve` and reads the endpoint that it prints.
func (s *stage) startEtcd(ctx context.Context) error {
	log, err := s.openLog("etcd")
	if err != nil {
		return err
	}
	defer log.Close()
	s.etcd, err = child.Command{
		Path: s.self, Args: []string{"serve", "--auth", "--data-dir", "etcd", "--listen", "127.0.0.1:0", "--listen-https", "127.0.0.1:0"},
		Dir: s.dir, Env: s.temporary(), Stdout: log, Stderr: log, Grace: etcdGrace, Bound: true,
	}.Start()
	if err != nil {
		return fmt.Errorf("cannot start etcd: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.etcd.Wait() }()
	s.gone = s.watch("etcd", ended)
	ctx, cancel := context.WithTimeout(ctx, etcdDeadline)
	defer cancel()
	for {
		printed, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		if _, after, ok := strings.Cut(string(printed), "export PULLEY_ENDPOINTS="); ok && strings.Contains(after, "\n") {
			s.endpoint, _, _ = strings.Cut(after, "\n")
			at, pin := joinsAt.FindSubmatch(printed), pins.FindSubmatch(printed)
			if at == nil || pin == nil {
				return fmt.Errorf("cannot read where machines join: %s", printed)
			}
			s.server, s.pin = string(at[1]), string(pin[1])
			s.env = append(s.env, "PULLEY_SERVERS="+s.server)
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case err := <-s.broke:
			return err
		case <-ctx.Done():
			return fmt.Errorf("cannot start etcd: it printed no endpoint: %w", ctx.Err())
		}
	}
}

// temporary is the environment of programs whose temporary files disappear with the demo: a killed program removes nothing itself.
func (s *stage) temporary() []string { return append(slices.Clone(s.env), "TMPDIR="+s.dir) }

// watch reports the end of a part that should live as long as the demo.
func (s *stage) watch(what string, ended <-chan error) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		err := <-ended
		if s.closing.Load() {
			return
		}
		if err == nil {
			err = errors.New("without an error")
		}
		select {
		case s.broke <- fmt.Errorf("%s ended by itself: %w", what, err):
		default: // the first end is the cause of the others
		}
	}()
	return gone
}

// boot starts a machine and runs its userdata, as a cloud does. Then its agent ticks on its own.
func (s *stage) boot(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	m, err := local.Start(ctx, local.Config{Hostname: node, Empty: local.HostState(), Binds: []local.Bind{{From: s.agent, To: "/usr/local/bin/pulley-agent"}}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.machines[node] = m
	s.mu.Unlock()
	log, err := s.openLog(node)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := s.firstBoot(ctx, m, node, log); err != nil {
		return fmt.Errorf("cannot turn %s into a node: %w", node, err)
	}
	daemon := m.Command(context.WithoutCancel(ctx), "pulley-agent", "daemon", "--schedule", schedule)
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("cannot start the agent of %s: %w", node, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	s.watch("the agent of "+node, ended)
	return nil
}

func (s *stage) firstBoot(ctx context.Context, m *local.Machine, node string, log *os.File) error {
	script, _, err := s.command(ctx, "", "userdata", node, "-e", "dev", "--allowed-signers", signersFile, "--servers", s.server, "--ca", s.pin, "--new-token")
	if err != nil {
		return err
	}
	if err := m.WriteFile("/run/userdata", []byte(script), 0o700); err != nil {
		return err
	}
	boot := m.Command(ctx, "/run/userdata")
	boot.Stdout, boot.Stderr = log, log
	if err := boot.Run(); err != nil {
		return err
	}
	const settings = "/etc/pulley/agent.yaml"
	yaml, err := m.ReadFile(settings)
	if err != nil {
		return err
	}
	return m.WriteFile(settings, fmt.Appendf(yaml, "enforce_interval: %s\n", enforceInterval), 0o600)
}

// pulley runs an operator's command and returns its output, with the standard error.
func (s *stage) pulley(ctx context.Context, args ...string) (string, error) {
	out, notes, err := s.command(ctx, "", args...)
	return out + notes, err
}

// command runs an operator's command with a text on its standard input. Its error contains the standard error.
func (s *stage) command(ctx context.Context, input string, args ...string) (out, notes string, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err = child.Command{
		Path: s.self, Args: args, Dir: s.dir, Env: s.temporary(), Stdin: strings.NewReader(input), Stdout: &stdout, Stderr: &stderr, Bound: true,
	}.Run(ctx)
	if err != nil {
		return stdout.String(), "", fmt.Errorf("pulley %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), stderr.String(), nil
}

// in runs a program in a machine and returns its output.
func (s *stage) in(ctx context.Context, node string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := s.machines[node].Command(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s on %s: %w: %s", args[0], node, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func (s *stage) openLog(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(s.dir, logDir), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(s.dir, logDir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// close ends the machines, then etcd.
func (s *stage) close() error {
	s.closing.Store(true)
	var errs []error
	for _, m := range s.machines {
		errs = append(errs, m.Close())
	}
	if s.etcd == nil {
		return errors.Join(errs...)
	}
	s.etcd.End()
	<-s.gone
	return errors.Join(errs...)
}

// poll repeats a check until it holds, fails, or takes too long.
func (s *stage) poll(ctx context.Context, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("not within %s", waitTimeout))
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if done, err := holds(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case err := <-s.broke:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// query runs an operator's command, unseen, for its JSON.
func (s *stage) query(ctx context.Context, answer any, args ...string) error {
	out, err := s.pulley(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	// After the value come warnings, from standard error.
	return json.NewDecoder(strings.NewReader(out)).Decode(answer)
}

func (s *stage) runs(ctx context.Context, node string) (runs []model.Run, err error) {
	err = s.query(ctx, &runs, "runs", node, "-e", "dev")
	return runs, err
}

// inodes identifies the release folder that each node enforces: another folder with the same content differs.
func (s *stage) inodes(ctx context.Context) (string, error) {
	var all []string
	for _, node := range s.nodes {
		out, err := s.in(ctx, node, "stat", "--dereference", "--format=inode %i", "/var/lib/pulley/current")
		if err != nil {
			return "", err
		}
		all = append(all, strings.TrimSpace(out))
	}
	return strings.Join(all, ", "), nil
}

// Package demo plays the life of a small fleet on this machine: a private etcd, and machines that are copy-on-write
// views of this one. It must never change this machine or reach another fleet, and nothing of it stays, however it ends.
package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pulley/internal/child"
	"pulley/internal/cli"
	"pulley/internal/machines/drivers/local"
	"pulley/internal/shellquote"
)

// demo is a story on a stage and a screen.
type demo struct {
	*stage
	*screen
	folders string // of the releases on the nodes, before the rollout
}

// Run plays the demo. With once it ends after the last step; else the fleet stays up until ctx ends.
func Run(ctx context.Context, env cli.Env, once bool) error {
	s := &stage{env: environ(env), machines: map[string]*local.Machine{}, broke: make(chan error, 1)}
	if err := s.find(ctx); err != nil {
		return err
	}
	dir, remove, err := makeFolder(s.env)
	if err != nil {
		return fmt.Errorf("cannot start the demo: %w", err)
	}
	s.dir = dir
	s.env = append(s.env, "XDG_CONFIG_HOME="+filepath.Join(dir, "config")) // of the context that serve writes
	d := &demo{stage: s, screen: newScreen(env)}
	err = d.play(ctx)
	if err != nil && ctx.Err() == nil {
		d.showLogs()
	}
	if !once && ctx.Err() == nil {
		d.invite(err)
		err = errors.Join(err, d.stay(ctx))
	}
	d.line("\nThe fleet ends.")
	return errors.Join(err, s.close(), remove())
}

// remover is a shell that makes the demo's folder, prints its path, and removes the folder when its standard input ends.
// The processes that write there die at the same time as the demo, not before it.
const remover = `trap "" HUP INT PIPE TERM; dir=$(mktemp -d "${TMPDIR:-/tmp}/pulley-demo-XXXXXX") || exit; echo "$dir"; cat
for i in $(seq 150); do rm -rf -- "$dir" && exit; sleep 0.1; done; exit 1`

// makeFolder makes the demo's folder. It disappears with this process, also after SIGKILL: the kernel then closes the pipe to
// the remover.
func makeFolder(env []string) (dir string, remove func() error, err error) {
	life, end, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	defer life.Close()
	out, printed, err := os.Pipe()
	if err != nil {
		end.Close()
		return "", nil, err
	}
	defer out.Close()
	var problem strings.Builder
	shell, err := child.Command{Path: "sh", Args: []string{"-c", remover}, Env: env, Dir: "/", Stdin: life, Stdout: printed, Stderr: &problem}.Start()
	printed.Close()
	if err != nil {
		end.Close()
		return "", nil, err
	}
	remove = func() error {
		end.Close()
		if err := shell.Wait(); err != nil {
			return fmt.Errorf("cannot remove the demo's folder: %w: %s\nremove %s", err, strings.TrimSpace(problem.String()), dir)
		}
		return nil
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = remove()
		return "", nil, fmt.Errorf("cannot make its folder: %s", strings.TrimSpace(problem.String()))
	}
	dir = strings.TrimSuffix(line, "\n")
	return dir, remove, nil
}

// environ is the environment of the operator's commands: it names no other fleet.
func environ(e cli.Env) []string {
	env := []string{"PATH=" + e.Getenv("PATH") + ":/opt/puppetlabs/bin"}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "SUDO_USER", "LANG", "TMPDIR"} {
		if v := e.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// find checks that this machine has everything that the demo needs.
func (s *stage) find(ctx context.Context) error {
	if err := local.Check(ctx); err != nil {
		return err
	}
	for _, need := range []struct{ program, otherwise, debianPackage string }{
		{"puppet", "/opt/puppetlabs/bin/puppet", "puppet-agent"},
		{"cron", "/usr/sbin/cron", "cron"}, // else each machine's first run of Puppet would install it
		{"ssh-keygen", "/usr/bin/ssh-keygen", "openssh-client"},
	} {
		_, err := exec.LookPath(need.program)
		if _, otherwise := exec.LookPath(need.otherwise); err != nil && otherwise != nil {
			return fmt.Errorf("cannot start the demo: its machines use this machine's programs, and %s is not installed\nrun `apt-get install --no-install-recommends %s`",
				need.program, need.debianPackage)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	s.self, s.agent = self, filepath.Join(filepath.Dir(self), "pulley-agent")
	if _, err := exec.LookPath(s.agent); err != nil {
		return fmt.Errorf("cannot find pulley-agent beside pulley: %w\nrun `make build`", err)
	}
	return nil
}

// stay waits until ctx ends, or until a part of the fleet ends by itself.
func (d *demo) stay(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.broke:
		d.showLogs()
		return err
	}
}

// showLogs prints the last lines of the logs of etcd and the agents.
func (d *demo) showLogs() {
	for _, name := range append([]string{"etcd"}, d.nodes...) {
		b, err := os.ReadFile(filepath.Join(d.dir, logDir, name))
		if err != nil {
			continue // not started yet
		}
		lines := nonEmpty(string(b))
		d.line("\n" + d.paint("1", "The last lines of the log of "+name+":"))
		d.show(strings.Join(lines[max(0, len(lines)-shownLog):], "\n"), shownLog)
	}
}

// invite prints commands to try while the fleet is up.
func (d *demo) invite(failure error) {
	if failure != nil {
		d.line("\n" + d.paint("1;31", failure.Error()))
	}
	if d.endpoint == "" {
		return
	}
	repo := filepath.Join(d.dir, repoDir)
	d.line("\n" + d.paint("1;36", "The fleet is up until Ctrl-C. In another terminal:"))
	if found, err := exec.LookPath("pulley"); err != nil || found != d.self {
		d.line("  export PATH=" + shellquote.Word(filepath.Dir(d.self)) + ":$PATH")
	}
	for _, l := range []string{
		"export XDG_CONFIG_HOME=" + shellquote.Word(filepath.Join(d.dir, "config")) + " PULLEY_SIGN_KEY=" + shellquote.Word(filepath.Join(d.dir, signKey)),
		"pulley status -e dev",
		"pulley explain controller1 -e dev",
		"pulley data set -e dev --node compute1 profile::base::message 'Only here'",
		"$EDITOR " + shellquote.Word(filepath.Join(repo, "manifests/site.pp")) + "    # compute nodes still lack data",
		"pulley publish " + shellquote.Word(repo) + " --version 1.3.0 && pulley rollout start 1.3.0 -e dev && pulley rollout watch -e dev",
	} {
		d.line("  " + l)
	}
	d.line("A shell on a machine, as root:")
	for _, node := range d.nodes {
		if m := d.machines[node]; m != nil {
			d.line(fmt.Sprintf("  nsenter --target %d --all    # %s", m.Pid(), node))
		}
	}
	d.line("Logs: tail -f " + shellquote.Word(filepath.Join(d.dir, logDir)) + "/*")
}

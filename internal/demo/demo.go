// Package demo plays the life of a small fleet on this machine: a private etcd, and three machines that are copy-on-write views of
// this one. It must never change this machine or reach another fleet, and nothing of it stays, however it ends.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/drivers/local"
	"pulley/internal/shellquote"
)

// Options are the choices of a person.
type Options struct {
	Once    bool // end after the last step; else the fleet stays up until ctx ends
	NoColor bool
}

// demo is a story on a stage, told on a screen.
type demo struct {
	*stage
	*screen
}

// Run plays the demo. The keeper of its folder starts before anything else and outlives everything else.
func Run(ctx context.Context, env cli.Env, o Options) error {
	s := &stage{env: environ(env), machines: map[string]*local.Machine{}, broke: make(chan error, 1)}
	if err := s.find(ctx); err != nil {
		return err
	}
	k, err := startKeeper(s.self, s.env)
	if err != nil {
		return fmt.Errorf("cannot start the demo: %w", err)
	}
	s.dir = k.dir
	d := &demo{stage: s, screen: newScreen(env, o.NoColor)}
	err = d.play(ctx)
	if err != nil && ctx.Err() == nil {
		d.showLogs()
	}
	if !o.Once && ctx.Err() == nil {
		d.invite(err)
		err = errors.Join(err, d.stay(ctx))
	}
	d.line("")
	d.say("The fleet ends.")
	return errors.Join(err, s.close(), k.close())
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
	for _, name := range append([]string{"etcd"}, nodes...) {
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
		"export PULLEY_ENDPOINTS=" + d.endpoint + " PULLEY_SIGN_KEY=" + shellquote.Word(filepath.Join(d.dir, signKey)),
		"pulley status -e dev",
		"pulley explain controller1 -e dev",
		"pulley data set -e dev --node compute1 profile::base::message 'Only here'",
		"$EDITOR " + shellquote.Word(filepath.Join(repo, "manifests/site.pp")) + "    # the colon is still missing",
		"pulley publish " + shellquote.Word(repo) + " --version 1.3.0 && pulley promote 1.3.0 -e dev",
	} {
		d.line("  " + l)
	}
	d.line("A shell on a machine, as root:")
	for _, node := range nodes {
		if m := d.machines[node]; m != nil {
			d.line(fmt.Sprintf("  nsenter --target %d --all    # %s", m.Pid(), node))
		}
	}
	d.line("Logs: tail -f " + shellquote.Word(filepath.Join(d.dir, logDir)) + "/*")
}

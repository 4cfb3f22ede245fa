package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/agent"
)

const (
	waitTimeout  = 90 * time.Second
	pollInterval = 700 * time.Millisecond
	shownLines   = 18
	shownLog     = 15
)

// operators runs commands of an operator, shown as they are typed, until one fails.
func (d *demo) operators(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		d.prompt("$", append([]string{"pulley"}, args...)...)
		out, err := d.pulley(ctx, args...)
		d.show(out, shownLines)
		if err != nil {
			return err
		}
	}
	return nil
}

// on runs a program in a machine, shown as root there would type it.
func (d *demo) on(ctx context.Context, node string, args ...string) (string, error) {
	d.prompt(node+"#", args...)
	out, err := d.in(ctx, node, args...)
	d.show(out, shownLines)
	return out, err
}

// edit appends to a file of the control repository, and shows what.
func (d *demo) edit(name, text string) error {
	path := filepath.Join(d.dir, repoDir, name)
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d.prompt("$", "edit", filepath.Join(repoDir, name))
	for l := range strings.Lines(text) {
		d.line("  " + d.paint("32", "+ "+strings.TrimRight(l, "\n")))
	}
	return os.WriteFile(path, append(append(old, '\n'), text...), 0o644)
}

func (d *demo) untilConverged(ctx context.Context, release string, data agent.Generation) error {
	what := "all are converged on " + release
	if data != 0 {
		what += fmt.Sprintf(" with data %d", data)
	}
	return d.until(ctx, what, func(n nodeStatus) bool {
		return n.State == agent.Converged && n.Release == release && n.Data == data
	})
}

// untilFailed waits until every node says that a release failed, and which one it is still on.
func (d *demo) untilFailed(ctx context.Context, release, still string) error {
	return d.until(ctx, "all say that "+release+" failed, and are on "+still, func(n nodeStatus) bool {
		return (n.State == agent.FailedState || n.State == agent.Stuck) && n.Desired == release && n.Release == still
	})
}

// until asks for the fleet's status until something holds for every node.
func (d *demo) until(ctx context.Context, what string, holds func(nodeStatus) bool) error {
	return d.during(what, func(detail func(string)) error {
		var last fleetStatus
		err := d.poll(ctx, func() (bool, error) {
			var now fleetStatus
			if err := d.ask(ctx, &now, "status", "-e", "dev"); err != nil {
				return false, err
			}
			last = now
			detail(last.inWords())
			return len(last.Nodes) == len(demoNodes) && !slices.ContainsFunc(last.Nodes, func(n nodeStatus) bool { return !holds(n) }), nil
		})
		if err != nil {
			for _, n := range last.Nodes {
				err = fmt.Errorf("%w\n%s is %s: %s", err, n.Node, n.State, n.Reason)
			}
			return fmt.Errorf("not %q: %w", what, err)
		}
		return nil
	})
}

func (f fleetStatus) inWords() string {
	var parts []string
	for _, n := range f.Nodes {
		on := n.Release
		if on == "" {
			on = "nothing"
		}
		parts = append(parts, fmt.Sprintf("%s %s on %s", n.Node, n.State, on))
	}
	return strings.Join(parts, ", ")
}

// poll asks until the answer is yes, an error, or too late.
func (d *demo) poll(ctx context.Context, holds func() (bool, error)) error {
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
		case err := <-d.broke:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask runs an operator's command, unseen, for its JSON.
func (d *demo) ask(ctx context.Context, answer any, args ...string) error {
	out, err := d.pulley(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	// What follows the value are warnings, from standard error.
	return json.NewDecoder(strings.NewReader(out)).Decode(answer)
}

func (d *demo) runsOf(ctx context.Context, node string) (runs []agent.Run, err error) {
	err = d.ask(ctx, &runs, "runs", node, "-e", "dev")
	return runs, err
}

// tree names the folder of the release that each node enforces, so that another folder with the same content differs.
func (d *demo) tree(ctx context.Context) (string, error) {
	var all []string
	for _, node := range demoNodes {
		out, err := d.in(ctx, node, "stat", "--dereference", "--format=inode %i", "/var/lib/pulley/current")
		if err != nil {
			return "", err
		}
		all = append(all, strings.TrimSpace(out))
	}
	return strings.Join(all, ", "), nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// showLogs prints the end of what etcd and the agents said.
func (d *demo) showLogs() {
	for _, name := range append([]string{"etcd"}, demoNodes...) {
		b, err := os.ReadFile(filepath.Join(d.dir, logDir, name))
		if err != nil {
			continue // not started yet
		}
		lines := nonEmpty(string(b))
		d.line("\n" + d.paint("1", "the last lines of the log of "+name))
		d.show(strings.Join(lines[max(0, len(lines)-shownLog):], "\n"), shownLog)
	}
}

// invite says what to do with the fleet while it is up.
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
		d.line("  export PATH=" + shellQuoted(filepath.Dir(d.self)) + ":$PATH")
	}
	for _, l := range []string{
		"export PULLEY_ENDPOINTS=" + d.endpoint + " PULLEY_SIGN_KEY=" + shellQuoted(filepath.Join(d.dir, signKey)),
		"pulley status -e dev",
		"pulley explain controller1 -e dev",
		"pulley data set -e dev --node compute1 profile::base::message 'Only here'",
		"$EDITOR " + shellQuoted(filepath.Join(repo, "manifests/site.pp")) + "    # has the missing colon still",
		"pulley publish " + shellQuoted(repo) + " --version 1.3.0 && pulley promote 1.3.0 -e dev",
	} {
		d.line("  " + l)
	}
	d.line("Into a machine, as root:")
	for _, node := range demoNodes {
		if m := d.machines[node]; m != nil {
			d.line(fmt.Sprintf("  nsenter --target %d --all    # %s", m.Pid(), node))
		}
	}
	d.line("What they say: tail -f " + shellQuoted(filepath.Join(d.dir, logDir)) + "/*")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"pulley/agent"
	"pulley/internal/cli"
)

// demo is a story on a stage, told on a screen.
type demo struct {
	*stage
	*screen
}

type scene struct {
	name, title string
	play        func(context.Context) error
}

// story is what happens. Each scene ends when what it tells has come true, or with an error.
func (d *demo) story() []scene {
	return []scene{
		{"etcd and a release", "an etcd, a release, an environment", d.beginning},
		{"birth", "three machines are born", d.birth},
		{"first release", "the first release", d.firstRelease},
		{"data", "data for one role", d.roleData},
		{"new release", "a new release", d.newRelease},
		{"broken release", "a broken release", d.brokenRelease},
		{"drift", "the old release stays enforced", d.drift},
		{"rollback", "the way back", d.rollback},
	}
}

const (
	motd   = "/etc/pulley-demo/motd"    // the starter content has it
	banner = "/etc/pulley-demo/release" // release 1.1.0 adds it
)

var demoNodes = []string{"controller1", "controller2", "compute1"}

func (d *demo) play(ctx context.Context) error {
	began, scenes := d.now(), d.story()
	for i, s := range scenes {
		d.title(i+1, len(scenes), s.title)
		if err := s.play(ctx); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("the demo was stopped in step %d of %d (%s)", i+1, len(scenes), s.name)
			}
			return fmt.Errorf("step %d of %d (%s) did not come true: %w", i+1, len(scenes), s.name, err)
		}
	}
	d.line("\n" + d.paint("1;32", "Every step came true, in "+cli.Span(d.now().Sub(began))+"."))
	return nil
}

func (d *demo) beginning(ctx context.Context) error {
	d.say("An etcd is the only server that nodes need. This one is private and ends with the demo.")
	d.typed("$", "pulley serve --data-dir etcd --listen 127.0.0.1:0 &")
	err := d.during("etcd serves", func(func(string)) error { return d.startEtcd(ctx) })
	if err != nil {
		return err
	}
	d.prompt("$", "export", "PULLEY_ENDPOINTS="+d.endpoint)
	d.say("Operators sign what they publish with an SSH key. Nodes take nothing that is not signed by one of their allowed signers.")
	err = d.operators(ctx,
		[]string{"key", "create", signKey, "--no-passphrase"},
		[]string{"key", "allow", signKey + ".pub", "--name", "operator", "--environments", "dev", "--signers", signersFile})
	if err != nil {
		return err
	}
	d.prompt("$", "export", "PULLEY_SIGN_KEY="+signKey)
	d.env = append(d.env, "PULLEY_SIGN_KEY="+signKey)
	d.say("A control repository is what Puppet people know, with the fleets in environments/. Published, it is a release.")
	return d.operators(ctx,
		[]string{"init", repoDir},
		[]string{"publish", repoDir, "--version", "1.0.0"},
		[]string{"env", "apply", repoDir + "/environments/dev.yaml"})
}

func (d *demo) birth(ctx context.Context) error {
	d.say("Each machine is a copy-on-write view of this one, with a hostname of its own. What cloud-init would run on its first boot " +
		"registers it, runs Puppet once to give the agent its schedule, and waits for a release.")
	for _, node := range demoNodes {
		d.typed("$", "pulley userdata "+node+" -e dev --allowed-signers "+signersFile+"    # the script for its first boot")
	}
	err := d.during("three machines ran their userdata", func(detail func(string)) error {
		detail("each runs Puppet for the first time")
		errs := make([]error, len(demoNodes))
		var births sync.WaitGroup
		for i, node := range demoNodes {
			births.Go(func() { errs[i] = d.bear(ctx, node) })
		}
		births.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	for _, node := range demoNodes {
		if _, err := d.on(ctx, node, "grep", "pulley-agent", "/etc/cron.d/pulley-agent"); err != nil {
			return err
		}
	}
	d.say("Nobody need wait for cron here: each agent ticks every 2 seconds, and enforces what it has every 20 seconds, not every 30 minutes.")
	err = d.until(ctx, "all are registered and wait for a release", func(n nodeStatus) bool {
		return n.State == agent.Pending && n.Reason == string(agent.ReasonNoTarget)
	})
	if err != nil {
		return err
	}
	return d.operators(ctx, []string{"nodes", "-e", "dev"}, []string{"status", "-e", "dev"})
}

func (d *demo) firstRelease(ctx context.Context) error {
	onHost := exists(filepath.Dir(motd))
	if err := d.operators(ctx, []string{"promote", "1.0.0", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.0.0", 0); err != nil {
		return err
	}
	if err := d.operators(ctx, []string{"status", "-e", "dev"}); err != nil {
		return err
	}
	d.say("Puppet changed these machines, and not the one that they are views of:")
	for _, node := range demoNodes {
		if _, err := d.on(ctx, node, "cat", motd); err != nil {
			return err
		}
	}
	if !onHost && exists(filepath.Dir(motd)) {
		return fmt.Errorf("%s is on this machine too", filepath.Dir(motd))
	}
	if !onHost {
		d.prompt("$", "ls", filepath.Dir(motd))
		d.show("ls: there is no "+filepath.Dir(motd)+" on this machine", 1)
	}
	return nil
}

func (d *demo) roleData(ctx context.Context) error {
	d.say("Data changes without a release. Release and data are one target, and a node that the change does not concern has nothing to do.")
	const message = "Back at noon"
	err := d.operators(ctx, []string{"data", "set", "-e", "dev", "--role", "controller", "profile::base::message", message})
	if err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.0.0", 1); err != nil {
		return err
	}
	for _, node := range demoNodes {
		got, err := d.on(ctx, node, "cat", motd)
		if err != nil {
			return err
		}
		if has, should := strings.Contains(got, message), strings.HasPrefix(node, "controller"); has != should {
			return fmt.Errorf("%s says %q on %s", motd, got, node)
		}
	}
	runs, err := d.runsOf(ctx, "compute1")
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.Reason == agent.ReasonNew && r.Target.Data != 0 {
			return fmt.Errorf("compute1 ran Puppet for data that does not concern it: run %s", r.ID)
		}
	}
	d.say("compute1 ran no Puppet for it:")
	return d.operators(ctx, []string{"runs", "compute1", "-e", "dev"})
}

func (d *demo) newRelease(ctx context.Context) error {
	if err := d.edit("manifests/site.pp", "file { '"+banner+"':\n  content => \"this is ${facts['pulley']['release']}\\n\",\n}\n"); err != nil {
		return err
	}
	if err := d.operators(ctx, []string{"publish", repoDir, "--version", "1.1.0"}, []string{"promote", "1.1.0", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.1.0", 1); err != nil {
		return err
	}
	for _, node := range demoNodes {
		got, err := d.on(ctx, node, "cat", banner)
		if err != nil {
			return err
		}
		if !strings.Contains(got, "1.1.0") {
			return fmt.Errorf("%s says %q on %s", banner, got, node)
		}
	}
	return d.operators(ctx, []string{"status", "-e", "dev"})
}

func (d *demo) brokenRelease(ctx context.Context) error {
	if err := d.edit("manifests/site.pp", "file { '/etc/pulley-demo/notes'\n  content => \"a colon is missing above\\n\",\n}\n"); err != nil {
		return err
	}
	d.say("`pulley validate` would have told:")
	d.prompt("$", "pulley", "validate", repoDir)
	out, err := d.pulley(ctx, "validate", repoDir)
	if err == nil {
		return errors.New("pulley validate finds nothing wrong with a syntax error")
	}
	d.tell(out, 4)
	d.say("Nobody asked it.")
	if err := d.operators(ctx, []string{"publish", repoDir, "--version", "1.2.0"}, []string{"promote", "1.2.0", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilFailed(ctx, "1.2.0", "1.1.0"); err != nil {
		return err
	}
	if err := d.operators(ctx, []string{"status", "-e", "dev"}); err != nil {
		return err
	}
	runs, err := d.runsOf(ctx, "compute1")
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.Outcome == agent.Failed {
			if !strings.Contains(r.Problem, "Syntax error") {
				return fmt.Errorf("the run of compute1 does not have Puppet's message, but %q", r.Problem)
			}
			d.prompt("$", "pulley", "runs", "compute1", r.ID, "-e", "dev")
			out, err := d.pulley(ctx, "runs", "compute1", r.ID, "-e", "dev")
			d.tell(out, 5)
			return err
		}
	}
	return errors.New("no failed run of compute1 is on record")
}

func (d *demo) drift(ctx context.Context) error {
	d.say("A release that does not compile changed nothing. Every node is still on 1.1.0, tries 1.2.0 again now and then, and mends " +
		"what somebody breaks by hand when it next enforces what it has:")
	if _, err := d.on(ctx, "compute1", "rm", motd); err != nil {
		return err
	}
	err := d.during(motd+" is back on compute1", func(func(string)) error {
		return d.poll(ctx, func() (bool, error) {
			_, err := d.machines["compute1"].ReadFile(motd)
			if errors.Is(err, os.ErrNotExist) {
				return false, nil
			}
			return err == nil, err
		})
	})
	if err != nil {
		return err
	}
	err = d.during("compute1 reported it as drift from 1.1.0", func(func(string)) error {
		return d.poll(ctx, func() (bool, error) {
			runs, err := d.runsOf(ctx, "compute1")
			return slices.ContainsFunc(runs, func(r agent.Run) bool { return r.Drift && r.Target.Release == "1.1.0" }), err
		})
	})
	if err != nil {
		return err
	}
	if err := d.untilFailed(ctx, "1.2.0", "1.1.0"); err != nil {
		return err
	}
	return d.operators(ctx, []string{"runs", "compute1", "-e", "dev"}, []string{"explain", "compute1", "-e", "dev"})
}

func (d *demo) rollback(ctx context.Context) error {
	before, err := d.tree(ctx)
	if err != nil {
		return err
	}
	if err := d.operators(ctx, []string{"rollback", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.1.0", 1); err != nil {
		return err
	}
	if err := d.operators(ctx, []string{"status", "-e", "dev"}, []string{"history", "-e", "dev"}); err != nil {
		return err
	}
	after, err := d.tree(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the folder of release 1.1.0 was %s and is %s: it was fetched again", before, after)
	}
	d.say("No node downloaded anything: 1.1.0 never left its disk. Release and data would have gone back together.")
	return nil
}

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"pulley/internal/cli"
	"pulley/internal/model"
)

type scene struct {
	title string
	play  func(context.Context) error
}

// story is the list of steps. Each ends when its effect has been seen, or with an error.
func (d *demo) story() []scene {
	return []scene{
		{"an etcd, a release, an environment", d.start},
		{"the first boot of three machines", d.firstBoots},
		{"the first release", d.firstRelease},
		{"data for one role", d.roleData},
		{"a new release", d.newRelease},
		{"a machine joins", d.joins},
		{"a secret of one role", d.secret},
		{"a rollout that stops by itself", d.rollout},
		{"the old release stays enforced", d.drift},
		{"the way back", d.revert},
	}
}

const (
	motd = "/etc/pulley-demo/motd" // of the starter content

	banner   = "/etc/pulley-demo/release" // release 1.1.0 adds these
	backends = "/etc/pulley-demo/backends"
	password = "/etc/pulley-demo/password"
	missing  = "demo::disks" // data that release 1.2.0 lacks

	shownLines = 18 // of a command's output
	shownLog   = 15
)

var firstNodes = []string{"controller1", "controller2", "compute1"}

func (d *demo) play(ctx context.Context) error {
	began, scenes := d.now(), d.story()
	for i, s := range scenes {
		d.line("\n" + d.paint("1;36", fmt.Sprintf("── %d of %d: %s", i+1, len(scenes), s.title)))
		if err := s.play(ctx); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("the demo was stopped in step %d of %d (%s)", i+1, len(scenes), s.title)
			}
			return fmt.Errorf("step %d of %d (%s) failed: %w", i+1, len(scenes), s.title, err)
		}
	}
	d.line("\n" + d.paint("1;32", "Every step succeeded, in "+cli.Span(d.now().Sub(began))+"."))
	return nil
}

func (d *demo) start(ctx context.Context) error {
	d.line("Nodes need one server: etcd. This one is private and ends with the demo. Each node and operator has a certificate.")
	d.typed("$", "pulley serve --auth --data-dir etcd --listen 127.0.0.1:0 --listen-https 127.0.0.1:0 &")
	err := d.during("etcd serves", func(func(string)) error { return d.startEtcd(ctx) })
	if err != nil {
		return err
	}
	d.line("Operators sign releases with an SSH key. A node accepts only releases that an allowed signer has signed.")
	err = d.operator(ctx,
		[]string{"key", "create", signKey, "--no-passphrase"},
		[]string{"key", "allow", signKey + ".pub", "--name", "operator", "--environments", "dev", "--signers", signersFile})
	if err != nil {
		return err
	}
	d.prompt("$", "export", "PULLEY_SIGN_KEY="+signKey)
	d.env = append(d.env, "PULLEY_SIGN_KEY="+signKey)
	d.line("A control repository is a usual one for Puppet, with one file for each fleet in environments/.\n" +
		"A published repository is a release.")
	return d.operator(ctx,
		[]string{"init", repoDir},
		[]string{"publish", repoDir, "--version", "1.0.0"},
		[]string{"env", "apply", repoDir + "/environments/dev.yaml"})
}

func (d *demo) firstBoots(ctx context.Context) error {
	d.line("Each machine is a copy-on-write view of this one, with its own hostname. In a cloud, cloud-init runs the same\n" +
		"script at the first boot. The script registers the node, runs Puppet once to install the agent's schedule, and waits\n" +
		"for a release.")
	d.nodes = slices.Clone(firstNodes)
	for _, node := range d.nodes {
		d.userdata(node)
	}
	err := d.during("three machines ran their userdata", func(detail func(string)) error {
		detail("each runs Puppet for the first time")
		errs := make([]error, len(d.nodes))
		var boots sync.WaitGroup
		for i, node := range d.nodes {
			boots.Go(func() { errs[i] = d.boot(ctx, node) })
		}
		boots.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	if err := d.onAll(ctx, "", "grep", "pulley-agent", "/etc/cron.d/pulley-agent"); err != nil {
		return err
	}
	d.line("In this demo each agent ticks every 2 seconds, and enforces its target every 20 seconds, not every 30 minutes.")
	err = d.until(ctx, "all are registered and wait for a release", func(n nodeStatus) bool {
		return n.State == model.Pending && n.Reason == model.ReasonNoTarget
	})
	if err != nil {
		return err
	}
	return d.operator(ctx, []string{"nodes", "-e", "dev"}, []string{"status", "-e", "dev"})
}

func (d *demo) userdata(node string) {
	d.typed("$", "pulley userdata "+node+" -e dev --allowed-signers "+signersFile+" --servers "+d.server+" --ca sha256:… --new-token    # its first boot")
}

func (d *demo) firstRelease(ctx context.Context) error {
	onHost := exists(filepath.Dir(motd))
	if err := d.operator(ctx, []string{"promote", "1.0.0", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.0.0", 0); err != nil {
		return err
	}
	if err := d.operator(ctx, []string{"status", "-e", "dev"}); err != nil {
		return err
	}
	d.line("Puppet changed the three machines, and not this one:")
	if err := d.onAll(ctx, "", "cat", motd); err != nil {
		return err
	}
	if !onHost && exists(filepath.Dir(motd)) {
		return fmt.Errorf("%s is on this machine, too", filepath.Dir(motd))
	}
	return nil
}

func (d *demo) roleData(ctx context.Context) error {
	d.line("Data changes without a release. Release and data are one target. A node that does not use the changed data has\n" +
		"nothing to do.")
	const message = "Back at noon"
	err := d.operator(ctx, []string{"data", "set", "-e", "dev", "--role", "controller", "profile::base::message", message})
	if err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.0.0", 1); err != nil {
		return err
	}
	for _, node := range d.nodes {
		got, err := d.on(ctx, node, "cat", motd)
		if err != nil {
			return err
		}
		if has, should := strings.Contains(got, message), strings.HasPrefix(node, "controller"); has != should {
			return fmt.Errorf("%s contains %q on %s", motd, got, node)
		}
	}
	runs, err := d.runs(ctx, "compute1")
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.Reason == model.ReasonNew && r.Target.Data != 0 {
			return fmt.Errorf("compute1 ran Puppet for data of another role: run %s", r.ID)
		}
	}
	d.line("compute1 ran no Puppet for it:")
	return d.operator(ctx, []string{"runs", "compute1", "-e", "dev"})
}

func (d *demo) newRelease(ctx context.Context) error {
	d.line("1.1.0 also writes a load balancer's list: controllers see the nodes of the role compute, as data.")
	err := errors.Join(
		d.replace("environments/dev.yaml", "cardinality: 2\n", "cardinality: 2\n    sees: [compute]\n"),
		d.replace("environments/dev.yaml", "roles:\n", "hosts: {settle: 2s}\nroles:\n"),
		d.edit("manifests/site.pp", `file { '`+banner+`':
  content => "this is ${facts['pulley']['release']}\n",
}
$seen = lookup('pulley::hosts', Hash, 'first', {})
unless $seen.empty {
  file { '`+backends+`':
    content => $seen['compute'].map |$h| { "server ${h['name']} ${h['name']}:443\n" }.join,
  }
}
$password = lookup('demo::password', Any, 'first', undef)
if $password {
  file { '`+password+`': content => $password, mode => '0600' }
}
`))
	if err != nil {
		return err
	}
	if err := d.operator(ctx, []string{"publish", repoDir, "--version", "1.1.0"}, []string{"promote", "1.1.0", "-e", "dev"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.1.0", 1); err != nil {
		return err
	}
	if err := d.onAll(ctx, "1.1.0", "cat", banner); err != nil {
		return err
	}
	return d.operator(ctx, []string{"status", "-e", "dev"})
}

func (d *demo) joins(ctx context.Context) error {
	const node = "compute2"
	if err := d.replace("environments/dev.yaml", "cardinality: 1\n", "cardinality: 2\n"); err != nil {
		return err
	}
	if err := d.operator(ctx, []string{"env", "apply", repoDir + "/environments/dev.yaml"}); err != nil {
		return err
	}
	d.nodes = append(d.nodes, node)
	d.userdata(node)
	err := d.during(node+" ran its userdata", func(func(string)) error { return d.boot(ctx, node) })
	if err != nil {
		return err
	}
	d.line("Its first boot staged 1.1.0 already. The nodes that see it run once for it:")
	for _, seer := range d.nodes[:2] {
		err := d.during(seer+" lists "+node, func(func(string)) error {
			return d.poll(ctx, func() (bool, error) {
				list, err := d.in(ctx, seer, "cat", backends)
				return strings.Contains(list, node), err
			})
		})
		if err != nil {
			return err
		}
	}
	if _, err := d.on(ctx, "controller1", "cat", backends); err != nil {
		return err
	}
	return d.untilConverged(ctx, "1.1.0", 1)
}

func (d *demo) secret(ctx context.Context) error {
	const text = "only controllers know"
	d.line("A secret is encrypted to a role before it leaves the operator's machine. Only nodes of the role decrypt it, for a run.")
	d.typed("$", "echo '"+text+"' | pulley secret set demo::password -e dev --role controller")
	out, _, err := d.command(ctx, text+"\n", "secret", "set", "demo::password", "-e", "dev", "--role", "controller")
	d.show(out, shownLines)
	if err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.1.0", 2); err != nil {
		return err
	}
	if err := d.operator(ctx, []string{"data", "get", "-e", "dev"}); err != nil {
		return err
	}
	for _, node := range d.nodes {
		if !strings.HasPrefix(node, "controller") {
			continue
		}
		if got, err := d.on(ctx, node, "cat", password); err != nil || !strings.Contains(got, text) {
			return fmt.Errorf("%s contains %q on %s: %w", password, got, node, err)
		}
	}
	d.line("compute1 has neither the file nor the text:")
	got, err := d.on(ctx, "compute1", "sh", "-c", "ls "+filepath.Dir(password)+"; grep -rl '"+text+"' /etc /var/lib/pulley || echo not found")
	if err == nil && (strings.Contains(got, filepath.Base(password)) || !strings.Contains(got, "not found")) {
		err = errors.New("the secret of controllers is on compute1")
	}
	return err
}

func (d *demo) rollout(ctx context.Context) error {
	d.line("1.2.0 has a mistake that no check finds before a run: on compute nodes, it needs data that nobody set. A staged\n" +
		"rollout reaches two canaries first, one of each role.")
	var err error
	if d.folders, err = d.inodes(ctx); err != nil {
		return err
	}
	if err := d.replace("environments/dev.yaml", "roles:\n", "rollout: {canaries: 2}\nroles:\n"); err != nil {
		return err
	}
	err = d.edit("manifests/site.pp", "if $facts['networking']['hostname'] =~ /^compute/ {\n  $disks = lookup('"+missing+"', Array)\n}\n")
	if err != nil {
		return err
	}
	err = d.operator(ctx, []string{"env", "apply", repoDir + "/environments/dev.yaml"},
		[]string{"publish", repoDir, "--version", "1.2.0"}, []string{"rollout", "start", "1.2.0", "-e", "dev", "-m", "new disks"})
	if err != nil {
		return err
	}
	d.prompt("$", "pulley", "rollout", "watch", "-e", "dev")
	out, err := d.pulley(ctx, "rollout", "watch", "-e", "dev")
	d.show(out, shownLines)
	if err == nil || !strings.Contains(out, "it paused by itself") {
		return fmt.Errorf("the rollout did not pause by itself: %w", err)
	}
	d.line("compute1 failed, and keeps 1.1.0. The rollout orders nobody else:")
	if err := d.operator(ctx, []string{"status", "-e", "dev"}, []string{"explain", "compute2", "-e", "dev"}); err != nil {
		return err
	}
	runs, err := d.runs(ctx, "compute1")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(runs, func(r model.Run) bool { return r.Outcome == model.Failed })
	if i < 0 {
		return errors.New("compute1 has reported no failed run")
	}
	d.prompt("$", "pulley", "runs", "compute1", runs[i].ID, "-e", "dev")
	out, err = d.pulley(ctx, "runs", "compute1", runs[i].ID, "-e", "dev")
	if err == nil && !strings.Contains(out, missing) {
		err = fmt.Errorf("run %s does not contain Puppet's message", runs[i].ID)
	}
	d.show(out, 5)
	return err
}

func (d *demo) drift(ctx context.Context) error {
	d.line("A release that does not compile changes nothing. compute1 stays on 1.1.0 and retries 1.2.0 at longer and longer\n" +
		"intervals. When it enforces 1.1.0 again, it repairs manual changes:")
	if _, err := d.on(ctx, "compute1", "rm", motd); err != nil {
		return err
	}
	err := d.during("compute1 repaired the drift from 1.1.0 and reported it", func(func(string)) error {
		return d.poll(ctx, func() (bool, error) {
			runs, err := d.runs(ctx, "compute1")
			return slices.ContainsFunc(runs, func(r model.Run) bool { return r.Drift && r.Target.Release == "1.1.0" }), err
		})
	})
	if err != nil {
		return err
	}
	if _, err := d.on(ctx, "compute1", "cat", motd); err != nil {
		return err
	}
	return d.operator(ctx, []string{"runs", "compute1", "-e", "dev"}, []string{"explain", "compute1", "-e", "dev"})
}

func (d *demo) revert(ctx context.Context) error {
	d.line("controller1 has 1.2.0. The rollout signed its way back at the start: one command returns every node.")
	if err := d.operator(ctx, []string{"rollout", "revert", "-e", "dev", "--yes", "-m", "compute nodes lack data"}); err != nil {
		return err
	}
	if err := d.untilConverged(ctx, "1.1.0", 2); err != nil {
		return err
	}
	if err := d.operator(ctx, []string{"status", "-e", "dev"}, []string{"rollout", "show", "-e", "dev"}, []string{"history", "-e", "dev"}); err != nil {
		return err
	}
	after, err := d.inodes(ctx)
	if err != nil {
		return err
	}
	if d.folders != after {
		return fmt.Errorf("the folder of release 1.1.0 was %s and is %s: it was fetched again", d.folders, after)
	}
	d.line("Only controller1 had left 1.1.0, and it downloaded nothing: 1.1.0 stayed on its disk.")
	return nil
}

// operator runs commands, shown as they are typed, until one fails.
func (d *demo) operator(ctx context.Context, commands ...[]string) error {
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

// onAll runs a program in each machine. Its output must contain want.
func (d *demo) onAll(ctx context.Context, want string, args ...string) error {
	for _, node := range d.nodes {
		out, err := d.on(ctx, node, args...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, want) {
			return fmt.Errorf("%s prints %q on %s", args[0], out, node)
		}
	}
	return nil
}

// replace changes the first place of a text in a file of the control repository, and shows it.
func (d *demo) replace(name, old, text string) error {
	path := filepath.Join(d.dir, repoDir, name)
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(file), old) {
		return fmt.Errorf("%s contains no %q", name, old)
	}
	d.prompt("$", "edit", filepath.Join(repoDir, name))
	for l := range strings.Lines(text) {
		if !strings.Contains(old, l) {
			d.line("  " + d.paint("32", "+ "+strings.TrimRight(l, "\n")))
		}
	}
	return os.WriteFile(path, []byte(strings.Replace(string(file), old, text, 1)), 0o644)
}

// edit appends text to a file of the control repository, and shows it.
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

// nodeStatus is a node in the output of `pulley status -o json`.
type nodeStatus struct {
	Node, Desired, Release string
	model.Cause
	Data  model.Generation
	State model.NodeState
}

func (d *demo) untilConverged(ctx context.Context, release string, data model.Generation) error {
	what := "all are converged on " + release
	if data != 0 {
		what += fmt.Sprintf(" with data %d", data)
	}
	return d.until(ctx, what, func(n nodeStatus) bool {
		return n.State == model.Converged && n.Release == release && n.Data == data
	})
}

// until polls the status of the fleet until a condition held for every node. On a busy machine there is no moment without a
// running node.
func (d *demo) until(ctx context.Context, what string, holds func(nodeStatus) bool) error {
	return d.during(what, func(detail func(string)) error {
		var last []nodeStatus
		held := map[string]bool{}
		err := d.poll(ctx, func() (bool, error) {
			var now struct{ Nodes []nodeStatus }
			if err := d.query(ctx, &now, "status", "-e", "dev"); err != nil {
				return false, err
			}
			last = now.Nodes
			var parts []string
			for _, n := range last {
				held[n.Node] = held[n.Node] || holds(n)
				parts = append(parts, fmt.Sprintf("%s %s on %s", n.Node, n.State, cmp.Or(n.Release, "nothing")))
			}
			detail(strings.Join(parts, ", "))
			return !slices.ContainsFunc(d.nodes, func(node string) bool { return !held[node] }), nil
		})
		if err == nil {
			return nil
		}
		for _, n := range last {
			err = fmt.Errorf("%w\n%s is %s: %s", err, n.Node, n.State, n.Sentence())
		}
		return fmt.Errorf("%q did not happen: %w", what, err)
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

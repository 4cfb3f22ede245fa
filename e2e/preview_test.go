//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// siteInPlace and siteCandidate differ in each kind of change that a preview shows. The candidate has resources that real noop runs
// of Puppet would apply, or would postpone.
const (
	siteInPlace = `file { '/etc/pulley-demo': ensure => directory }
file { '/etc/pulley-demo/motd': content => "one\n" }
file { '/etc/pulley-demo/private': content => "one\n", mode => '0600' }
`
	siteCandidate = `schedule { 'once a day': period => daily }
file { '/etc/pulley-demo': ensure => directory }
file { '/etc/pulley-demo/motd': content => "two\n" }
~> exec { '/bin/touch /etc/pulley-demo/refreshed': refreshonly => true, noop => false }
file { '/etc/pulley-demo/private': content => "two\n", mode => '0600' }
file { '/etc/pulley-demo/insists': content => "two\n", noop => false }
file { '/etc/pulley-demo/scheduled': content => "two\n", schedule => 'once a day' }
exec { '/bin/touch /etc/pulley-demo/unless': unless => '/bin/test -e /etc/pulley-demo/unless' }
`
	siteBroken = `include no_such_class
`
)

// everything lists what is on a machine, with its times. Puppet's temporary files are in /tmp.
var everything = []string{"find", "/etc", "/opt", "/srv", "/usr/local", "/var", "-xdev", "-printf", `%p %y %m %U:%G %s %T@ %l\n`}

// ownWork are the places of the agent where a preview leaves something: what it fetched, what it remembers of the order, and the
// folders in which it locked out other runs of Puppet. A heartbeat may be due meanwhile.
var ownWork = regexp.MustCompile(`^/var/lib/pulley(/releases(/.*)?|/state\.json|/reported\.json|/lock|/run|/data(/.*)?|/staging|/fetched|(/runs|/puppet|/puppet/var/state)? d .*)?( |$)`)

// previewNodes is the number of nodes: PULLEY_TEST_PREVIEW_NODES, or 3.
func previewNodes(t *testing.T) int {
	if text := os.Getenv("PULLEY_TEST_PREVIEW_NODES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 3 {
			t.Fatalf("PULLEY_TEST_PREVIEW_NODES is %q", text)
		}
		return n
	}
	return 3
}

// An operator orders previews of production machines because nothing changes there: no file, no state of Puppet, no status.
func TestPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	count := previewNodes(t)
	f.spec(fmt.Sprintf("roles:\n  web: {cardinality: %d}\n", count))
	f.publish("1.1.0", siteInPlace)
	f.pulley("promote", "1.1.0")
	var nodes []string
	for n := range count {
		nodes = append(nodes, fmt.Sprintf("web%d", n+1))
		f.machine(nodes[n])
	}
	f.tick(nodes)
	last := nodes[count-1]
	f.write(last, "/etc/pulley-demo/motd", "by hand\n")
	f.publish("1.2.0", siteCandidate)
	f.publish("1.3.0", siteBroken)

	status, before := f.statuses(), map[string][]string{}
	for _, node := range nodes {
		before[node] = strings.Split(f.in(node, 0, everything[0], everything[1:]...), "\n")
	}
	page := f.preview(nodes, 0, "1.2.0")
	t.Logf("%d nodes:\n%s", count, page)
	for _, part := range []string{
		fmt.Sprintf("preview of 1.2.0 in dev: %d nodes, %[1]d answered; no node was changed\n", count),
		fmt.Sprintf("File[/etc/pulley-demo/motd] on %d nodes: ", count), fmt.Sprintf("    on %d nodes: web1, ", count-1),
		"      -one\n      +two\n", "    on 1 node: " + last + "\n", "      -by hand\n      +two\n",
		fmt.Sprintf("File[/etc/pulley-demo/private] on %d nodes: ", count), "the diff is left out: not every user",
		fmt.Sprintf("File[/etc/pulley-demo/insists] on %d nodes: ", count), fmt.Sprintf("File[/etc/pulley-demo/scheduled] on %d nodes: ", count),
		fmt.Sprintf("Exec[/bin/touch /etc/pulley-demo/refreshed] on %d nodes: ", count), "Would have triggered 'refresh' from 1 event\n", fmt.Sprintf("Exec[/bin/touch /etc/pulley-demo/unless] on %d nodes: ", count),
	} {
		contains(t, page, part)
	}
	page = f.preview(nodes, 4, "1.3.0")
	contains(t, page, fmt.Sprintf("  new, on %d nodes: ", count))
	contains(t, page, "no_such_class")
	f.tick(nodes) // deletes the answers
	if now := f.statuses(); now != status {
		t.Errorf("the statuses are\n%s\nbefore the previews:\n%s", now, status)
	}
	for _, node := range nodes {
		changed := difference(before[node], strings.Split(f.in(node, 0, everything[0], everything[1:]...), "\n"))
		if len(changed) > 0 {
			t.Errorf("%s changed:\n%s", node, strings.Join(changed, "\n"))
		}
	}

	// The preview was true, and postponed nothing.
	f.pulley("promote", "1.2.0")
	f.tick(nodes[:1])
	f.in("web1", 0, "ls", "/etc/pulley-demo/refreshed", "/etc/pulley-demo/insists", "/etc/pulley-demo/scheduled", "/etc/pulley-demo/unless")
}

// tick runs a tick of each node, two at a time.
func (f *testFleet) tick(nodes []string) {
	var all sync.WaitGroup
	slots := make(chan bool, 2)
	for _, node := range nodes {
		all.Go(func() {
			slots <- true
			defer func() { <-slots }()
			f.agent(node, 0, "run")
		})
	}
	all.Wait()
}

// preview runs `pulley preview` while the nodes tick, and checks its exit code.
func (f *testFleet) preview(nodes []string, want int, version string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(bin, "pulley"), "preview", version, "--sample", "0", "--wait", patience.String())
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+f.endpoint, "PULLEY_ENVIRONMENT=dev")
	var page strings.Builder
	cmd.Stdout, cmd.Stderr = &page, os.Stderr
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	s := f.store()
	f.until("the orders", func() (bool, string) {
		d, err := control.In(s).Desire(f.t.Context(), model.Identity{Environment: "dev", Node: nodes[0]})
		return err == nil && d.Preview != nil, fmt.Sprint(err)
	})
	f.tick(nodes)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != want {
		f.t.Fatalf("pulley preview %s ended with %d, want %d\n%s", version, code, want, page.String())
	}
	return page.String()
}

func (f *testFleet) store() *etcd.DB {
	f.t.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{f.endpoint}, Timeout: patience})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// statuses returns all nodes' statuses in etcd, without the times of their heartbeats.
func (f *testFleet) statuses() string {
	f.t.Helper()
	all, err := fleet.In(f.store()).State(f.t.Context(), model.Ref{Environment: "dev"})
	if err != nil {
		f.t.Fatal(err)
	}
	for node, st := range all.Statuses {
		st.SeenAt = time.Time{}
		all.Statuses[node] = st
	}
	b, err := json.MarshalIndent(all.Statuses, "", " ")
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// difference returns the lines of one list that the other lacks, except those of the agent's own work.
func difference(before, after []string) (changed []string) {
	for sign, lists := range map[string][2][]string{"-": {before, after}, "+": {after, before}} {
		in := map[string]bool{}
		for _, line := range lists[1] {
			in[line] = true
		}
		for _, line := range lists[0] {
			if !in[line] && !ownWork.MatchString(line) {
				changed = append(changed, sign+line)
			}
		}
	}
	slices.Sort(changed)
	return changed
}

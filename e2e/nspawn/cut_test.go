//go:build e2e

package nspawn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/facts"
	"pulley/internal/firstboot"
	"pulley/internal/pki"
)

// The next boot must repair a first boot after a power cut: half a node would need a manual repair. The cuts here are
// at points where complete machines differ from killed processes: in cloud-init, in dpkg, and in a Puppet run.
// TestFirstBootCrashes kills the agent before and after each step. There is one cut in cloud-init and one in dpkg, and there are all
// where PULLEY_TEST_MACHINES is "all".
func TestFirstBootSurvivesPowerCut(t *testing.T) {
	t.Parallel()
	steps, early := []firstboot.Name{firstboot.Puppet, firstboot.Schedule}, []earlyCut{
		{"cloud-init", "multipart", scriptsBegun, "/var/lib/pulley/first-boot.sh"},
		{"cloud-init", "cloud-config", scriptsBegun, resumeUnit},
		{"the-download", "script", agentPath + ".new", agentPath},
	}
	if !allMachines {
		steps, early = steps[:1], early[:1]
	}
	c := cuts{fleet: newFleet(t, maxCuts*(len(steps)+4)), ends: make(chan end, len(steps)+4)}
	c.fleet.pulley("data", "set", "pulley::schedule", "0 0 1 1 *", "--sign-key", c.fleet.key) // no tick in between
	t.Run("in", func(t *testing.T) {
		t.Run("none", func(t *testing.T) {
			t.Parallel()
			c.becomesNode(t, "", "script", func(*Machine) bool { return true })
		})
		for _, e := range early {
			t.Run(e.place+" of "+e.form, func(t *testing.T) {
				t.Parallel()
				c.soonEnough(t, e.place, e.form, func(m *Machine) bool { return m.cutBetween(e.begun, e.over) })
			})
		}
		for _, step := range steps {
			t.Run(string(step), func(t *testing.T) {
				t.Parallel()
				c.soonEnough(t, "step "+string(step), "script", func(m *Machine) bool { return m.cutIn(step) })
			})
		}
	})
	close(c.ends)
	for _, f := range c.fleet.doctor() {
		t.Errorf("after all first boots: %+v", f)
	}
	uncut, states := "", map[string]string{}
	for e := range c.ends {
		if states[e.cut] = e.state; e.cut == " of script" {
			uncut = e.state
		}
	}
	t.Logf("a first boot leaves\n%s", uncut)
	for _, left := range []string{"plt_", "pulley-first-boot", ".new\n", "disabled", "the node's own, of this CA false", "uses 0"} {
		if strings.Contains(uncut, left) {
			t.Errorf("a first boot leaves %q behind:\n%s", left, uncut)
		}
	}
	for cut, state := range states {
		if state != uncut {
			t.Errorf("after a power cut in %s the machine differs from one without a power cut:\n%s", cut, differing(uncut, state))
		}
	}
}

// earlyCut is a power cut after one file appears and before another one does.
type earlyCut struct{ place, form, begun, over string }

// maxCuts is the number of machines to try while the power cut comes too late.
const maxCuts = 4

// cuts is a fleet whose machines have power cuts.
type cuts struct {
	fleet *Fleet
	nodes atomic.Int32
	ends  chan end
}

// end is the state of a machine after its first boot.
type end struct{ cut, state string }

// soonEnough tries further machines while the power cut comes too late.
func (c *cuts) soonEnough(t *testing.T, what, form string, cut func(*Machine) bool) {
	t.Helper()
	for range maxCuts {
		if c.becomesNode(t, what, form, cut) {
			return
		}
	}
	t.Errorf("all %d power cuts came too late", maxCuts)
}

// becomesNode makes a machine a node, with a power cut in between. It returns false if the cut came too late.
func (c *cuts) becomesNode(t *testing.T, what, form string, cut func(*Machine) bool) bool {
	t.Helper()
	defer takeSlots(t, 1)()
	f, node := c.fleet.For(t), fmt.Sprintf("compute%d", c.nodes.Add(1))
	m := NewMachine(t)
	m.Seed(map[string]string{"user-data": f.Userdata(node, "--format", form)})
	m.boot()
	if !cut(m) {
		m.cut()
		return false
	}
	if !m.on() {
		m.boot()
	}
	m.Wait("the first boot", m.Finished)
	c.ends <- end{what + " of " + form, f.endState(m, node)}
	m.cut()
	return true
}

// cutIn cuts the power during a step. It returns false if the step ended before.
func (m *Machine) cutIn(step firstboot.Name) bool {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		state := m.firstBoot().Steps[step].State
		if state == firstboot.Started && m.amid(step) || state == firstboot.Done {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("step %s does not start: %s\n%s", step, m.Finished(), m.story())
		}
	}
	m.cut()
	m.t.Logf("power cut: %s", m.Finished())
	return m.firstBoot().Steps[step].State == firstboot.Started
}

// amid reports whether a long step is at the point where a power cut does most harm.
func (m *Machine) amid(step firstboot.Name) bool {
	switch step {
	case firstboot.Puppet:
		return m.Has("/usr/bin/ruby3.1") && !m.Has("/usr/bin/puppet") // dpkg is unpacking
	case firstboot.Schedule:
		return len(m.List("/var/lib/pulley/runs")) > 0 // Puppet runs
	}
	return true
}

// Files that show the progress before the agent starts.
const (
	scriptsBegun = "/var/lib/cloud/instances/NAME/sem/config_scripts_user" // cloud-init never runs them again
	resumeUnit   = "/etc/systemd/system/multi-user.target.wants/pulley-first-boot.service"
	agentPath    = "/usr/local/bin/pulley-agent"
)

// cutBetween cuts the power when the first file exists. It returns false if the second one also exists.
func (m *Machine) cutBetween(begun, over string) bool {
	m.t.Helper()
	begun = strings.ReplaceAll(begun, "NAME", m.Name)
	for deadline := time.Now().Add(patience); !m.Has(begun); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s does not appear\n%s", begun, m.story())
		}
		if m.Has(over) {
			break
		}
	}
	m.cut()
	return m.Has(begun) && !m.Has(over)
}

// differing returns the lines that are in only one of two texts.
func differing(want, got string) string {
	var b strings.Builder
	only := func(mark, text, other string) {
		there := map[string]bool{}
		for line := range strings.Lines(other) {
			there[line] = true
		}
		for line := range strings.Lines(text) {
			if !there[line] {
				b.WriteString(mark + line)
			}
		}
	}
	only("- ", want, got)
	only("+ ", got, want)
	return b.String()
}

// ownedDirs are the folders that a first boot writes to.
var ownedDirs = []string{"/etc/pulley", "/etc/cron.d", "/etc/systemd/system", "/etc/apt/sources.list.d", "/usr/local", "/var/lib/pulley"}

// puppetLock is the name prefix of empty files that a Puppet leaves if it is killed while it takes its lock. No later
// run reads them.
const puppetLock = "/var/lib/pulley/puppet/var/state/.lock-"

// endState returns the result of a first boot on its machine and in etcd, one fact a line. It excludes differences
// between two machines: names, addresses, keys, times.
func (f *Fleet) endState(m *Machine, node string) string {
	m.t.Helper()
	var b strings.Builder
	for _, dir := range ownedDirs {
		_ = filepath.WalkDir(filepath.Join(m.root(), dir), func(path string, d fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, m.root())
			if strings.HasPrefix(name, puppetLock) {
				return nil
			}
			if err == nil {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					fmt.Fprintf(&b, "%s %s%s\n", info.Mode(), name, m.fact(name, info, node))
				}
			}
			if err != nil {
				m.t.Errorf("cannot read %s of %s: %v", path, m.Name, err)
			}
			return nil
		})
	}
	for _, program := range [][]string{{"dpkg", "--audit"}, {"dpkg-query", "-W"}, {"systemctl", "list-unit-files", "pulley*", "--no-legend"}, {"hostname"}} {
		out, err := m.In(program[0], program[1:]...)
		if err != nil && program[0] != "systemctl" { // fails if there are none
			m.t.Errorf("%s in %s: %v: %s", program, m.Name, err, out)
		}
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(program, " "), out)
	}
	fmt.Fprintf(&b, "as operators see it: %s\n", f.seen(m, node))
	return strings.NewReplacer(node, "NODE", m.Address, "ADDRESS", strings.TrimSpace(m.Read("/etc/machine-id")), "MACHINE").Replace(b.String())
}

// fact returns the relevant facts of one file.
func (m *Machine) fact(name string, info fs.FileInfo, node string) string {
	m.t.Helper()
	if info.Mode()&fs.ModeSymlink != 0 {
		target, _ := os.Readlink(filepath.Join(m.root(), name))
		return " -> " + target
	}
	if !info.Mode().IsRegular() {
		return ""
	}
	// Puppet's own files contain mostly times.
	for _, own := range []string{"/var/lib/pulley/puppet/", "/var/lib/pulley/runs/"} {
		if strings.HasPrefix(name, own) {
			return ""
		}
	}
	text := m.Read(name)
	switch {
	case strings.HasSuffix(name, "identity/node.pem"):
		return ": " + m.identity(name, node)
	case name == stateFile:
		s := m.firstBoot()
		var is []string
		for _, step := range firstboot.Names() {
			is = append(is, fmt.Sprintf("%s %s%s", step, s.Steps[step].State, s.Steps[step].Error))
		}
		return ": " + strings.Join(is, ", ")
	case strings.HasSuffix(name, "/facts.zst"): // of this machine
		p, err := facts.Decode([]byte(text))
		return fmt.Sprintf(": facts %v, %v", len(p.Facts) > 0, err)
	case strings.HasSuffix(name, ".json"):
		return " " + strings.Join(keys(text), ",") // times and digests of this machine's runs
	case len(text) > 8<<10:
		return fmt.Sprintf(": %x", sha256.Sum256([]byte(text)))
	}
	return ": " + strings.ReplaceAll(text, "\n", "\n  ")
}

// identity checks that the machine has the key and a certificate of this node, issued by the CA that it trusts.
func (m *Machine) identity(name, node string) string {
	m.t.Helper()
	identity, err := pki.LoadIdentity(filepath.Join(m.root(), name))
	if err != nil {
		return err.Error()
	}
	leaf := identity.Certificates[0]
	is, err := pki.ParseName(leaf.Subject.CommonName)
	if err != nil {
		return err.Error()
	}
	if is.Kind != pki.KindNode || is.Environment != "dev" || is.Subject != node {
		return "the certificate of " + leaf.Subject.CommonName
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(m.Read(filepath.Join(filepath.Dir(name), "ca.pem"))))
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err.Error()
	}
	m.user = leaf.Subject.CommonName
	return "the node's own, of this CA"
}

// seen returns the operators' view of a node.
func (f *Fleet) seen(m *Machine, node string) string {
	f.t.Helper()
	h, s := f.host(node), f.Status(node)
	var tokens []struct {
		Node string
		Used int
	}
	f.json(&tokens, "token", "list")
	used := 0
	for _, t := range tokens {
		if t.Node == node {
			used += t.Used
		}
	}
	return fmt.Sprintf("%s, a %s called %s at %v; registered %t, as this machine %t; its first boot finished %t; joined %t with this certificate, %d uses of tokens; %s %s %s",
		h.Node, h.Role, h.Hostname, h.Addresses, h.Registered, h.MachineID == strings.TrimSpace(m.Read("/etc/machine-id")),
		!h.FirstBoot.Finished.IsZero() && h.FirstBoot.Error == "", h.Joined.User == m.user && m.user != "", used, s.State, s.Release, s.Reason)
}

// keys returns the sorted keys of a JSON object.
func keys(text string) []string {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return []string{err.Error()}
	}
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

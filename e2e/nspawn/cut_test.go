//go:build e2e

package nspawn

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/firstboot"
)

// Machines lose power whenever they like, also before anybody knows them: one that stayed half a node would have to be
// found and mended by hand.
func TestAPowerCutInAnyStepIsMendedByTheNextBoot(t *testing.T) {
	t.Parallel()
	steps := firstboot.Names()
	c := cuts{fleet: NewFleet(t, maxCuts*(len(steps)+4)), ends: make(chan end, len(steps)+4), busy: make(chan struct{}, 2)}
	t.Run("in", func(t *testing.T) {
		t.Run("none", func(t *testing.T) {
			t.Parallel()
			c.becomes(t, "", "script", func(*Machine) bool { return true })
		})
		for _, early := range []struct{ place, form, begun, over string }{
			{"the-download", "script", agentPath + ".new", agentPath},
			{"cloud-init", "multipart", scriptsBegun, "/var/lib/pulley/first-boot.sh"},
			{"cloud-init", "cloud-config", scriptsBegun, resumeUnit},
		} {
			t.Run(early.place+" of "+early.form, func(t *testing.T) {
				t.Parallel()
				c.soonEnough(t, early.place, early.form, func(m *Machine) bool { return m.cutBetween(early.begun, early.over) })
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
	for _, f := range c.fleet.Doctor() {
		t.Errorf("after all first boots: %+v", f)
	}
	whole, states := "", map[string]string{}
	for e := range c.ends {
		if states[e.cut] = e.state; e.cut == " of script" {
			whole = e.state
		}
	}
	t.Logf("a first boot leaves\n%s", whole)
	for _, left := range []string{"plt_", "pulley-first-boot", ".new\n", "disabled", "the node's own, of this CA false", "uses 0"} {
		if strings.Contains(whole, left) {
			t.Errorf("a first boot leaves %q behind:\n%s", left, whole)
		}
	}
	for cut, state := range states {
		if state != whole {
			t.Errorf("cut off in %s, a machine ends otherwise than one that was never cut off:\n%s", cut, differing(whole, state))
		}
	}
}

// maxCuts is how many machines may get through a step before their power is cut: some steps take a few milliseconds.
const maxCuts = 4

// cuts is the fleet of the machines that are cut off.
type cuts struct {
	fleet *Fleet
	nodes atomic.Int32
	busy  chan struct{} // first boots at one time: they need a processor each
	ends  chan end
}

// end is what became of a machine that was cut off.
type end struct{ cut, state string }

// soonEnough tries with further machines while their power is cut too late.
func (c *cuts) soonEnough(t *testing.T, what, form string, cut func(*Machine) bool) {
	t.Helper()
	for range maxCuts {
		if c.becomes(t, what, form, cut) {
			return
		}
	}
	t.Errorf("what was to be cut off was over before, %d times", maxCuts)
}

// becomes makes a machine a node, with a power cut in between. Where cut returns false, nothing more is done.
func (c *cuts) becomes(t *testing.T, what, form string, cut func(*Machine) bool) bool {
	t.Helper()
	c.busy <- struct{}{}
	defer func() { <-c.busy }()
	f, node := c.fleet.For(t), fmt.Sprintf("compute%d", c.nodes.Add(1))
	m := NewMachine(t)
	m.Seed(map[string]string{"user-data": f.Userdata(node, "--format", form, "--schedule", "0 0 1 1 *")}) // no tick in between
	m.Boot()
	if !cut(m) {
		m.Cut()
		return false
	}
	if !m.On() {
		m.Boot()
	}
	m.Wait("the first boot", 4*time.Minute, m.Finished)
	c.ends <- end{what + " of " + form, f.EndState(m, node)}
	m.Cut()
	return true
}

// cutIn cuts the power while a step is under way. It reports whether it did: a step may be over too soon.
func (m *Machine) cutIn(step firstboot.Name) bool {
	m.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		state := m.FirstBoot().Steps[step].State
		if state == firstboot.Started && m.amid(step) || state == firstboot.Done {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("step %s does not begin: %s\n%s", step, m.Finished(), m.Story())
		}
	}
	m.Cut()
	m.t.Logf("power cut: %s", m.Finished())
	return m.FirstBoot().Steps[step].State == firstboot.Started
}

// amid reports whether a long step is where a cut does most harm; a short one always is.
func (m *Machine) amid(step firstboot.Name) bool {
	switch step {
	case firstboot.Puppet:
		return m.Has("/usr/bin/ruby3.1") && !m.Has("/usr/bin/puppet") // dpkg is unpacking
	case firstboot.Schedule:
		return len(m.List("/var/lib/pulley/runs")) > 0 // Puppet runs
	}
	return true
}

// Files by which the time before the agent's own is told.
const (
	scriptsBegun = "/var/lib/cloud/instances/NAME/sem/config_scripts_user" // cloud-init never runs them again
	resumeUnit   = "/etc/systemd/system/multi-user.target.wants/pulley-first-boot.service"
	agentPath    = "/usr/local/bin/pulley-agent"
)

// cutBetween cuts the power when one file is there, and reports whether another was not there yet.
func (m *Machine) cutBetween(begun, over string) bool {
	m.t.Helper()
	begun = strings.ReplaceAll(begun, "NAME", m.Name)
	for deadline := time.Now().Add(time.Minute); !m.Has(begun); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s does not appear\n%s", begun, m.Story())
		}
		if m.Has(over) {
			break
		}
	}
	m.Cut()
	return m.Has(begun) && !m.Has(over)
}

// differing are the lines of two texts that only one has.
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

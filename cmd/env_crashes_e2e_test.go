//go:build e2e

package cmd_test

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/machines/apply"
)

// An applyScene is a task of an apply, and the parts of the work in which it can die.
type applyScene struct {
	name      string
	was, want string // roles of the environment; a non-empty was is applied before
	wait      string // of that apply; "" means the command's default
	parts     []string
	released  bool             // a release with retire hooks is promoted: nodes converge and run them
	twice     bool             // the provider can list a machine twice
	happens   func(*applyCase) // before the second apply
}

// The roles of scenes.
const (
	noWeb    = "  web: {cardinality: 0}\n"
	oneWeb   = "  web: {cardinality: 1}\n"
	twoWebs  = "  web: {cardinality: 2}\n"
	largeWeb = "  web: {cardinality: 1, flavor: large}\n"
)

func applyScenes() []applyScene {
	making := []string{"claim", "order", "register", "converge"}
	retiring := []string{"retire", "hold", "ask", "drain", "remove", "delete", "gone", "forget"}
	return []applyScene{
		{name: "create", want: twoWebs, parts: making, released: true},
		{name: "wait", was: twoWebs, want: twoWebs, wait: "none", parts: []string{"settle", "register", "converge"}},
		{name: "retire", was: twoWebs, want: oneWeb, parts: retiring, released: true},
		{name: "replace", was: oneWeb, want: largeWeb, parts: slices.Concat(retiring, making)},
		{name: "adopt", was: twoWebs, want: twoWebs, parts: []string{"adopt", "register", "converge"}, happens: (*applyCase).loseRecord},
		{name: "duplicate", was: oneWeb, want: oneWeb, parts: []string{"recheck", "clear", "cleared"}, twice: true, happens: (*applyCase).plantCopy},
	}
}

// TestEnvApplyCrashes proves that the next apply completes one that was killed by a power cut or an OOM kill: no machine exists twice or is
// forgotten, and no other resource changes. The command, etcd with its users and the machines' agents are real. The provider is a program.
// An apply dies where something has just changed, and before and after each part where PULLEY_TEST_CRASHES is "all". A
// replacement is a retirement and a creation: it dies where the one becomes the other.
func TestEnvApplyCrashes(t *testing.T) {
	t.Parallel()
	f := newApplyFleet(t)
	var all []*applyCase
	tried := map[string]bool{}
	for _, scene := range applyScenes() {
		if scene.name == "replace" && os.Getenv("PULLEY_TEST_CRASHES") != "all" {
			scene.parts = []string{"gone", "forget", "claim"}
		}
		all = append(all, f.applyCase(scene, ""))
		for _, part := range scene.parts {
			for _, place := range []string{"before:" + part, "after:" + part} {
				tried[place] = true
				if os.Getenv("PULLEY_TEST_CRASHES") == "all" || slices.Contains(changing, place) {
					all = append(all, f.applyCase(scene, place))
				}
			}
		}
	}
	if want := 2 * len(apply.Tasks()); len(tried) != want {
		t.Errorf("there are crashes at %d places, want %d: before and after each part", len(tried), want)
	}
	var cases sync.WaitGroup
	cases.Go(func() { t.Run("waits for the lock", f.waitsForTheLock) })
	abreast := make(chan struct{}, 8) // cases wait more than they compute
	for _, c := range all {
		cases.Go(func() {
			abreast <- struct{}{}
			defer func() { <-abreast }()
			t.Run(c.String(), c.run)
		})
	}
	cases.Wait()
	calm := ""
	for _, c := range all {
		switch {
		case c.place == "":
			calm = c.ended
		case calm != "" && c.ended != "" && c.ended != calm: // a failed or skipped case has no end
			t.Errorf("%s: only after the crash:\n%s\nonly without it:\n%s", c, without(c.ended, calm), without(calm, c.ended))
		}
	}
	t.Logf("%d crashes", len(all)-len(applyScenes())+1)
}

// changing are the places after which etcd or the provider has changed, and one wait. The tests of package machines crash before and after
// each call of an apply.
var changing = []string{"after:claim", "after:order", "before:register", "after:remove", "after:delete", "after:forget", "after:adopt", "after:clear"}

// without returns the lines of one end that the other lacks.
func without(end, other string) string {
	has := strings.Split(other, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(end, "\n"), func(l string) bool { return slices.Contains(has, l) }), "\n")
}

// run plays the scene up to the crash, and completes it with another apply.
func (c *applyCase) run(t *testing.T) {
	c.t = t
	c.powerOn()
	if c.scene.released {
		c.file(noWeb)
		c.must("env", "apply", c.env+".yaml")
		c.must("promote", "1.0.0", "--foreign", "-e", c.env)
	}
	if c.scene.was != "" {
		c.file(c.scene.was)
		c.must("env", "apply", c.env+".yaml", "--yes", "--until", cmp.Or(c.scene.wait, string(apply.WaitConverged)))
	}
	if c.scene.happens != nil {
		c.scene.happens(c)
	}
	c.file(c.scene.want)
	if c.place != "" {
		c.dies()
		c.unlock()
	}
	c.must("env", "apply", c.env+".yaml", "--yes")
	c.must("env", "plan", c.env+".yaml", "--detailed-exitcodes") // no change is left
	c.powerOff()
	c.ended = c.end()
}

// dies kills an apply, and checks that it died at this place by SIGKILL.
func (c *applyCase) dies() {
	c.t.Helper()
	out, err := c.pulley([]string{"PULLEY_FAILPOINT=" + c.place}, "env", "apply", c.env+".yaml", "--yes")
	if !killed(err) {
		c.t.Fatalf("the apply was not killed at %s: %v\n%s", c.place, err, out)
	}
}

// waitsForTheLock runs an apply after a killed one, as operators see it. The message names the holder of the lock and
// its time. The lock becomes free after a minute without any action.
func (f *applyFleet) waitsForTheLock(t *testing.T) {
	c := f.applyCase(applyScene{name: "lock"}, "before:order")
	c.t = t
	c.powerOn()
	c.file(oneWeb)
	began := time.Now().UTC().Truncate(time.Second)
	c.dies()
	died := time.Now()
	out, err := c.pulley(nil, "env", "apply", c.env+".yaml", "--yes")
	_, since, found := strings.Cut(out, "cannot apply "+c.env+" while admin applies, since ") // the name in the certificate
	at, parsed := time.Parse(time.RFC3339, strings.SplitN(since, "\n", 2)[0])
	if err == nil || !found || parsed != nil || at.Before(began) || at.After(time.Now()) || !strings.Contains(out, "the lock of a killed program ends within a minute") {
		t.Fatalf("the next apply reports: %v\n%s", err, out)
	}
	for ; c.locked(); time.Sleep(200 * time.Millisecond) {
		if time.Since(died) > 90*time.Second {
			t.Fatal("no later apply can begin")
		}
	}
	out = c.must("env", "apply", c.env+".yaml", "--yes")
	c.powerOff()
	if n := len(c.boots["web1"]); n != 1 || !strings.Contains(out, "applied "+c.env+": 1 node") {
		t.Errorf("%d machines were made:\n%s", n, out)
	}
	c.must("env", "plan", c.env+".yaml", "--detailed-exitcodes")
	t.Logf("the lock stood for %s", time.Since(died).Round(time.Second))
}

// String returns the case's name.
func (c *applyCase) String() string {
	if c.place == "" {
		return c.scene.name + "/without a crash"
	}
	return c.scene.name + "/" + c.place
}

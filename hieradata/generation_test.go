package hieradata

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func mustNext(t *testing.T, g Generation, changes map[Layer][]byte) Generation {
	t.Helper()
	next, err := g.Next(changes, "ana", "because", noon)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// Without it, a generation would not survive etcd, or its signature would not verify.
func TestGenerationRoundTrips(t *testing.T) {
	g := mustNext(t, Generation{}, map[Layer][]byte{Common: []byte("a: 1\n"), ForRole("compute"): []byte("b: 2\n"), ForNode("x.example_1"): []byte("c: 3\n")})
	data, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := DecodeGeneration(data)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != g.Digest() || again.Digest() != Digest(data) || again.Number != 1 || again.Layers[Common] != Digest([]byte("a: 1\n")) || !again.At.Equal(noon) {
		t.Errorf("got %+v", again)
	}
	second := mustNext(t, g, map[Layer][]byte{Common: nil, Environment: []byte("d: 4\n")})
	if _, has := second.Layers[Common]; has || len(second.Layers) != 3 || len(g.Layers) != 3 || second.Previous != 1 || second.Number != 2 {
		t.Errorf("got %+v after %+v", second, g)
	}
}

// Without it, Pulley would use a foreign value in etcd, or one from a newer Pulley, as data.
func TestDecodeGenerationRefuses(t *testing.T) {
	digest := strings.Repeat("a", 64)
	valid := `{"v":1,"number":2,"layers":{"common":"` + digest + `"},"by":"","message":"","at":"2026-05-04T12:00:00Z","previous":1}`
	if _, err := DecodeGeneration([]byte(valid)); err != nil {
		t.Fatal(err)
	}
	edit := func(old, replacement string) string { return strings.Replace(valid, old, replacement, 1) }
	for _, c := range []struct{ data, problem string }{
		{edit(`"v":1`, `"v":2`), "install a newer Pulley"},
		{edit(`"v":1`, `"v":0`), "no format 0"},
		{``, "unexpected end"},
		{valid[:40], "unexpected end"},
		{`null`, "no format"},
		{edit(digest, "abc"), "64 hex digits"},
		{edit(digest, strings.Repeat("A", 64)), "64 hex digits"},
		{edit(`"common"`, `"roles/"`), "is not a layer"},
		{edit(`"common"`, `"nodes/../x"`), "is not a layer"},
		{edit(`"common"`, `"Common"`), "is not a layer"},
		{edit(`"number":2`, `"number":0`), "numbers start at 1"},
		{edit(`"previous":1`, `"previous":2`), "can't be the one before"},
		{edit(`"by":""`, `"by":"","extra":1`), "not in the form that Pulley writes"},
		{edit(`"by":""`, `"by":"a","by":""`), "not in the form that Pulley writes"},
		{edit(`"by"`, `"BY"`), "not in the form that Pulley writes"},
		{valid + "\n", "not in the form that Pulley writes"},
		{valid + "{}", "after top-level value"},
		{edit(`12:00:00Z`, `14:00:00+02:00`), "UTC"},
		{edit(`"v":1,`, `"v":1,"environment":"",`), "not in the form that Pulley writes"},
		{edit(`"v":1,`, `"environment":"dev","v":1,`), "not in the form that Pulley writes"},
		{edit(`"v":1,`, `"v":1,"environment":"`+strings.Repeat("x", 300)+`",`), "its environment is not a text"},
		{edit(`{"common":"`+digest+`"}`, `null`), "its list of layers is missing"},
		{strings.Repeat(" ", maxGenerationBytes+1), "too many"},
	} {
		if _, err := DecodeGeneration([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%.90s: got %v, want %q", c.data, err, c.problem)
		}
	}
}

// Without it, data that was signed for one environment would be valid in another, or data of older programs would be
// lost.
func TestGenerationNamesItsEnvironment(t *testing.T) {
	g := mustNext(t, Generation{Environment: "dev@t42"}, nil)
	data, err := g.Encode()
	if err != nil || !strings.HasPrefix(string(data), `{"v":1,"environment":"dev@t42","number":1,`) {
		t.Fatalf("%s, %v", data, err)
	}
	again, err := DecodeGeneration(data)
	if err != nil || again.Environment != "dev@t42" {
		t.Errorf("got %+v, %v", again, err)
	}
	g.Environment = "dev"
	if g.Digest() == again.Digest() {
		t.Error("two environments have one digest")
	}
	if data, err := mustNext(t, Generation{}, nil).Encode(); err != nil || strings.Contains(string(data), "environment\"") {
		t.Errorf("%s, %v", data, err)
	}
}

// Without it, etcd would refuse a value with an error that names neither layer nor size.
func TestGenerationLimits(t *testing.T) {
	large, err := Set(nil, "k", strings.Repeat("x", maxLayerBytes))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Generation{}.Next(map[Layer][]byte{ForRole("compute"): large}, "", "", noon)
	if want := fmt.Sprintf("layer roles/compute is %d bytes", len(large)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := (Generation{}).Next(map[Layer][]byte{Common: []byte("b: 1\na: 2\n")}, "", "", noon); err == nil || !strings.Contains(err.Error(), "not canonical") {
		t.Errorf("unsorted bytes: %v", err)
	}
	if _, err := (Generation{}).Next(map[Layer][]byte{"node/x": []byte("b: 1\n")}, "", "", noon); err == nil {
		t.Error("a layer of an unknown kind was accepted")
	}
	many := Generation{V: 1, Number: 1, Layers: map[Layer]string{}, At: noon}
	for i := range 7000 {
		many.Layers[ForNode(fmt.Sprintf("compute%d", i))] = strings.Repeat("a", 64)
	}
	if _, err := many.Encode(); err == nil || !strings.Contains(err.Error(), "7000 layers") {
		t.Errorf("got %v", err)
	}
	if d := many.Digest(); d != "" {
		t.Errorf("a generation that can't be written has the digest %s", d)
	}
}

// Without it, a change for one role would start Puppet on every node of the fleet.
func TestNodeDigest(t *testing.T) {
	first := mustNext(t, Generation{}, map[Layer][]byte{Common: []byte("a: 1\n"), ForRole("compute"): []byte("b: 2\n")})
	second := mustNext(t, first, map[Layer][]byte{ForRole("compute"): []byte("b: 3\n"), ForNode("controller2"): []byte("c: 1\n")})
	if NodeDigest(first, levelsOf("controller", "controller1")) != NodeDigest(second, levelsOf("controller", "controller1")) {
		t.Error("controller1 sees a change of others")
	}
	for _, n := range [][2]string{{"compute", "compute1"}, {"controller", "controller2"}} {
		if NodeDigest(first, levelsOf(n[0], n[1])) == NodeDigest(second, levelsOf(n[0], n[1])) {
			t.Errorf("%s does not see its change", n[1])
		}
	}
	swapped := mustNext(t, Generation{}, map[Layer][]byte{Environment: []byte("a: 1\n")})
	if NodeDigest(swapped, levelsOf("controller", "controller1")) == NodeDigest(first, levelsOf("controller", "controller1")) {
		t.Error("the same layer in another place has the same digest")
	}
}

func FuzzDecodeGeneration(f *testing.F) {
	g, err := Generation{}.Next(map[Layer][]byte{Common: []byte("a: 1\n")}, "ana", "why", noon)
	if err != nil {
		f.Fatal(err)
	}
	data, err := g.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"number":1,"layers":{},"by":"","message":"","at":"0001-01-01T00:00:00Z","previous":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := DecodeGeneration(data)
		if err != nil {
			return
		}
		again, err := g.Encode()
		if err != nil || string(again) != string(data) {
			t.Fatalf("decoded %q, encoded %q, %v", data, again, err)
		}
	})
}

package plan

import (
	"strings"
	"testing"

	"pulley/agent"
	"pulley/internal/machines"
)

// If a plan were told otherwise, an operator would agree to what he did not read.
func TestPlanInWords(t *testing.T) {
	w := known()
	for _, node := range []string{"compute1", "compute2", "compute3", "compute4"} {
		w.machine(node, "compute", "m1.small", "id"+node[7:])
	}
	w.Machines[0].State = machines.Failed
	w.Machines[0].Problem = "No valid host\x1b[2J was found"
	spec := "provider: local\nroles:\n  web: {cardinality: 25}\n  db: {cardinality: 2}\n  compute: {cardinality: 2, flavor: m1.small}\n"
	p := Make(parsed(t, spec), w.World, Options{})
	want := []string{
		"create  web1 … web25 (25)  there is no machine of it",
		"create  db1                there is no machine of it",
		"create  db2                there is no machine of it",
		"broken  compute1           the provider says of its machine: No valid host [2J was found; destroys compute1 (id id1)",
		"retire  compute4           the file calls for 2 of compute; destroys compute4 (id id4)",
		"retire  compute3           the file calls for 2 of compute; destroys compute3 (id id3)",
		"create 27, broken 1, retire 2 (compute3, compute4), keep 1",
	}
	if got := strings.Join(p.Lines(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("lines:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	if len(p.Made()) != 28 || len(p.Destroyed()) != 3 || p.Empty() || !p.Acts() {
		t.Errorf("made %v, destroyed %v, empty %t", p.Made(), p.Destroyed(), p.Empty())
	}
}

// If a hint were lost, an operator would not know how to go on from a plan that is refused.
func TestBlockedPlanInWords(t *testing.T) {
	w := known()
	w.machine("db1", "db", "", "a")
	w.machine("db2", "db", "", "b")
	w.machine("db3", "db", "", "c")
	w.machine("web1", "web", "", "d")
	lines := strings.Join(Make(parsed(t, protectedDB), w.World, Options{}).Lines(), "\n")
	want := `retire  db3  the file calls for 2 of db; destroys db3 (id c)
        blocked: db is protected
        blocked: take ` + "`protected`" + ` from it in the file first, and apply that
retire 1 (db3), keep 3`
	if lines != want {
		t.Errorf("lines:\n%s\nwant:\n%s", lines, want)
	}
}

// If these were lost, an operator would take for done what machines did not get, or a silent node for a good one.
func TestPlanTellsWhatStays(t *testing.T) {
	w := known()
	w.machine("compute1", "compute", "m1.small", "a")
	w.machine("compute2", "compute", "m1.small", "b")
	w.silence("compute2")
	w.Old = parsed(t, twoComputes)
	p := Make(parsed(t, strings.Replace(twoComputes, "flavor: small", "flavor: small, labels: {team: core}, networks: [front]", 1)), w.World, Options{})
	got := strings.Join(p.Lines(), "\n")
	want := `keep  compute1  the file changes its networks, labels, and its machine keeps what it was made with
keep  compute2  it is silent, and the provider says that its machine is running; the file changes its networks, labels, and its machine keeps what it was made with
nothing to do: keep 2`
	if got != want {
		t.Errorf("lines:\n%s\nwant:\n%s", got, want)
	}
	if !p.Changed || p.Whole {
		t.Errorf("changed %t, whole %t", p.Changed, p.Whole)
	}
}

// If these were left out, nobody would make the machines that Pulley does not.
func TestPlanTellsWhoIsMissing(t *testing.T) {
	w := known()
	w.join("web2", "web")
	p := Make(parsed(t, "roles: {web: {cardinality: 2, members: [old.example.com]}}\n"), w.World, Options{})
	got := strings.Join(p.Lines(), "\n")
	for _, says := range []string{"missing  web1             it has not joined: ", "\nmissing  old.example.com  it is a member that has not joined: ", "\nmissing 2, keep 1"} {
		if !strings.Contains(got, says) {
			t.Errorf("lines:\n%s\nwant: %s", got, says)
		}
	}
	if !p.Empty() {
		t.Error("an apply has something to do")
	}
}

// If a fleet were called whole that is not, nobody would look for the node that died.
func TestJudge(t *testing.T) {
	e := parsed(t, "roles:\n  db: {cardinality: 1}\n  compute:\n    cardinality: 7\n    members: [old.example.com]\n")
	w := known()
	for _, node := range []string{"db1", "compute1", "compute2", "compute9", "old.example.com"} {
		w.join(node, "")
	}
	w.silence("compute2")
	w.Hosts["compute3"] = agent.Host{}
	h := machines.Judge(e, w.Hosts, w.Views)
	want := "not whole: compute 2 of 8 converged (compute2 silent, compute3 has not spoken, compute4 never joined, compute5 never joined, and 2 more)"
	if h.Whole || h.String() != want {
		t.Errorf("it is %s", h)
	}
	if r := h.Roles[1]; r.Wanted != 8 || r.Registered != 4 || r.Converged != 2 {
		t.Errorf("compute: %+v", r)
	}
	for node := range e.Nodes() {
		w.join(node.String(), node.Role)
	}
	if h := machines.Judge(e, w.Hosts, w.Views); !h.Whole || h.String() != "whole" {
		t.Errorf("it is %s", h)
	}
}

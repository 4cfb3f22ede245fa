package render_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const twoComputes = `
provider: local
flavors: {small: m1.small, large: m1.large}
roles:
  compute: {cardinality: 2, flavor: small}
`

func parsed(t *testing.T, text string) *environments.Environment {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// world is a World that tests add nodes to.
type world struct{ machines.World }

func newWorld() *world {
	return &world{machines.World{
		Records: map[string]machines.Record{}, Hosts: map[string]model.Host{}, Views: map[string]model.View{},
		Statuses: map[string]model.Status{}, Held: map[string]model.Hold{}, Released: true, Now: noon,
	}}
}

// machine adds a converged node with a machine that was made an hour ago.
func (w *world) machine(node, role, flavor string) {
	id := "id-" + node
	w.Machines = append(w.Machines, machines.Machine{Name: node, ID: id, State: machines.Running, Created: noon.Add(-time.Hour)})
	w.Records[node] = machines.Record{Node: node, Name: node, ID: id, Phase: machines.Made, Driver: "local", Flavor: flavor, Tries: 1, By: "ann", At: noon.Add(-time.Hour)}
	w.join(node, role)
}

func (w *world) join(node, role string) {
	w.Hosts[node] = model.Host{Node: node, Role: role, At: noon.Add(-50 * time.Minute)}
	w.Views[node] = model.View{State: model.Converged}
	w.Statuses[node] = model.Status{Node: node, SeenAt: noon.Add(-time.Minute), LastGood: model.Target{Release: "1.0.0"}}
}

func (w *world) silence(node string) { w.Views[node] = model.View{State: model.Silent} }

// shown returns a plan as it is printed.
func (w *world) shown(t *testing.T, spec string, o plan.Options) string {
	t.Helper()
	return strings.Join(render.Plan(plan.Make(parsed(t, spec), w.World, o)), "\n")
}

// Without this an operator would approve a plan with other changes.
func TestPlanListsMachines(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for _, node := range []string{"compute1", "compute2", "compute3", "compute4"} {
		w.machine(node, "compute", "m1.small")
	}
	w.Machines[0].State = machines.Failed
	w.Machines[0].Problem = "No valid host\x1b[2J was found"
	spec := "provider: local\nroles:\n  web: {cardinality: 25}\n  db: {cardinality: 2}\n  compute: {cardinality: 2, flavor: m1.small}\n"
	want := `create  web1 … web25 (25)  it has no machine
create  db1                it has no machine
create  db2                it has no machine
broken  compute1           the provider reports of its machine: No valid host [2J was found; deletes compute1 (id id-compute1)
retire  compute4           the file calls for 2 of compute; deletes compute4 (id id-compute4)
retire  compute3           the file calls for 2 of compute; deletes compute3 (id id-compute3)
create 27, broken 1, retire 2 (compute3, compute4), keep 1`
	if got := w.shown(t, spec, plan.Options{}); got != want {
		t.Errorf("lines:\n%s\nwant:\n%s", got, want)
	}
}

// Without this an operator would approve machines that a plan does not name.
func TestPlanNamesEachDeletedMachine(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for n := range 100 {
		w.machine(fmt.Sprintf("compute%d", n+1), "compute", "m1.small")
	}
	shown := w.shown(t, twoComputes, plan.Options{})
	for n := 3; n <= 100; n++ {
		if !strings.Contains(shown, fmt.Sprintf("deletes compute%d (id id-compute%[1]d)\n", n)) {
			t.Fatalf("compute%d is not named:\n%s", n, shown)
		}
	}
}

// Without the remedy an operator could not continue from a refused plan.
func TestPlanShowsBlocks(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for _, node := range []string{"db1", "db2", "db3"} {
		w.machine(node, "db", "")
	}
	const spec = "provider: local\nroles:\n  db: {cardinality: 2, protected: true}\n"
	want := `retire  db3  the file calls for 2 of db; deletes db3 (id id-db3)
        blocked: db is protected
        blocked: remove ` + "`protected`" + ` from it in the file, and apply that first
retire 1 (db3), keep 2`
	if got := w.shown(t, spec, plan.Options{}); got != want {
		t.Errorf("lines:\n%s\nwant:\n%s", got, want)
	}
	p := plan.Make(parsed(t, spec), w.World, plan.Options{})
	err := render.Refused(p, p.Refused(p.Deleted()))
	if err == nil || err.Error() != "cannot apply dev: retire db3: db is protected\nremove `protected` from it in the file, and apply that first\nnothing was done" {
		t.Errorf("refused with: %v", err)
	}
}

// Without the notes an operator would expect settings that existing machines do not get, or miss a silent node.
func TestPlanShowsNotesOfNodesThatStay(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.machine("compute1", "compute", "m1.small")
	w.machine("compute2", "compute", "m1.small")
	w.silence("compute2")
	w.Old = parsed(t, twoComputes)
	got := w.shown(t, strings.Replace(twoComputes, "flavor: small", "flavor: small, labels: {team: core}, networks: [front]", 1), plan.Options{})
	want := `keep  compute1  the file changes its networks, labels, and its machine keeps the old settings
keep  compute2  it is silent, and the provider reports that its machine is running; the file changes its networks, labels, and its machine keeps the old settings
nothing to do: keep 2`
	if got != want {
		t.Errorf("lines:\n%s\nwant:\n%s", got, want)
	}
}

// Without this an operator would not learn which machines others have to make.
func TestPlanShowsMissingMachines(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.join("web2", "web")
	got := w.shown(t, "roles: {web: {cardinality: 2, members: [old.example.com]}}\n", plan.Options{})
	for _, want := range []string{
		"missing  web1             it has not joined: make its machine, with the output of `pulley userdata web1 -e dev` as its userdata",
		"\nmissing  old.example.com  it is a member that has not joined: run on it the output of `pulley userdata old.example.com -e dev --role web --hostname keep`",
		"\nmissing 2, keep 1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lines:\n%s\nwant: %s", got, want)
		}
	}
}

// Without this the name of a machine could send control characters to a terminal.
func TestPlanIsSafeForTerminals(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"compute1-t42\x1b[2J", "compute1-t42\n", "", strings.Repeat("x", 10_000), "compute1-t42\xff", "c\u202eompute1-t42"} {
		w := newWorld()
		w.Machines = []machines.Machine{{Name: name, ID: "x", State: machines.Running}}
		all := strings.ReplaceAll(w.shown(t, "stack: t42\n"+twoComputes, plan.Options{}), "\n", "")
		if len(all) > 3000 || strings.ContainsFunc(all, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x202e }) {
			t.Errorf("%.40q: %.300q", name, all)
		}
	}
}

// Without this a reason would be printed as its code.
func TestEveryCodeHasASentence(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); !ok || typ.Name != "Code" {
			return true
		}
		code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		count++
		got := render.Reason(machines.Reason{
			Code: machines.Code(code), Node: "web1", Machine: machines.Ref{Name: "web1"}, Problem: "no", State: machines.Building, NodeState: model.Converged,
			View: &model.View{State: model.Converged}, Hold: &model.Hold{Who: "ann"}, Role: "web", Was: "a", Now: "b",
		})
		if got == code || got == "" || strings.Contains(got, "$") {
			t.Errorf("the sentence of %s is %q", code, got)
		}
		return true
	})
	if count < 80 {
		t.Errorf("found only %d codes", count)
	}
}

// Without the count of nodes, an incomplete list of the provider could remove a fleet within --max-retire: no machine
// is deleted.
func TestCheckRetireCountsNodesWithoutMachines(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for _, node := range []string{"compute1", "compute2", "compute3"} {
		w.machine(node, "compute", "m1.small")
	}
	w.Machines = w.Machines[1:]
	w.silence("compute1")
	p := plan.Make(parsed(t, twoComputes), w.World, plan.Options{}) // removes compute1, retires compute3
	for most, want := range map[int]string{
		0: "cannot apply dev: it deletes 1 machine and removes 1 node without a machine, and the limit is 0",
		1: "--max-retire 2", 2: "",
	} {
		if err := apply.CheckRetire(p, most); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("at most %d: %v", most, err)
		}
	}
	if removed := p.Removed(); strings.Join(removed, " ") != "compute1" {
		t.Errorf("removed: %v", removed)
	}
}

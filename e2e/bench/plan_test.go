//go:build bench

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
)

const (
	planned = 5000 // nodes
	plans   = 15
)

// Measures an operator's wait for the plan of a large fleet: the complete command, with all answers from etcd and the
// provider.
func TestBenchPlan(t *testing.T) {
	w := newWorld(t)
	w.mkdir(w.dir(""))
	ctx, dev := t.Context(), model.Ref{Environment: "dev"}
	st, err := etcd.Open(etcd.Config{Endpoints: []string{w.server.Endpoint}, CACert: w.pki.CA, Cert: w.pki.ClientCert, Key: w.pki.ClientKey, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	owner, err := cluster.In(st).InstallationID(ctx, "bench")
	if err != nil {
		t.Fatal(err)
	}
	a, err := records.In(st).BeginApply(ctx, dev, "bench")
	if err != nil {
		t.Fatal(err)
	}
	type machine struct {
		machines.Machine
		Mark map[string]string `json:"mark"`
	}
	var all []machine
	now, target := time.Now().UTC(), model.Target{Release: "1.0.0", Tree: fmt.Sprintf("%064d", 1)}
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "compute", Cardinality: planned}}}
	for n := range e.Nodes() {
		node, id := n.String(), fmt.Sprintf("%036d", n.Num)
		host := model.Host{Node: node, Role: "compute", Hostname: n.Hostname(), Addresses: []string{"10.0.0.1"}, MachineID: fmt.Sprintf("%032d", n.Num), At: now}
		said := model.Status{
			Node: node, Role: "compute", Phase: model.Idle, Action: "nothing", Cause: model.Cause{Reason: model.ReasonUpToDate}, Target: target, LastGood: target, Enforcing: target,
			SeenAt: now, RanAt: now, Outcome: model.Unchanged, Settings: model.DefaultSettings(), Version: "1.0.0", Machine: host.MachineID, Boot: id,
		}
		r := machines.Record{Node: node, Name: n.Hostname(), ID: id, Phase: machines.Made, Driver: "exec", Tries: 1, By: "bench", At: now}
		if err := fleet.In(st).Register(ctx, "dev", host); err != nil {
			t.Fatal(err)
		}
		if err := control.In(st).Report(ctx, model.Identity{Node: node, Environment: "dev"}, said, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := a.Put(ctx, r, nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, machine{
			machines.Machine{Name: r.Name, ID: id, State: machines.Running, Created: now},
			map[string]string{"owner": owner, "fleet": dev.String()},
		})
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"machines": all})
	if err == nil {
		err = os.WriteFile(w.dir("list.json"), list, 0o644)
	}
	file := w.dir("dev.yaml")
	text := fmt.Sprintf("provider: {driver: exec, command: [cat, %s]}\nuserdata: {servers: ['https://pulley.example:8443']}\nroles: {compute: {cardinality: %d}}\n", w.dir("list.json"), planned+5)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	var took, least []float64
	for range plans {
		start := time.Now()
		if out := w.run("pulley", "env", "plan", file); !strings.Contains(out, fmt.Sprintf("create 5, keep %d", planned)) {
			t.Fatalf("that is not the plan: %.2000s", out)
		}
		took = append(took, time.Since(start).Seconds())
		start = time.Now()
		w.run("pulley", "env", "list")
		least = append(least, time.Since(start).Seconds())
	}
	fmt.Printf("\na plan of %d nodes (whole process, mTLS to etcd on loopback, a provider that answers at once), %d runs; %s, %d CPUs\n\n", planned, plans, runtime.Version(), runtime.NumCPU())
	fmt.Println("|  | median | p90 |")
	fmt.Println("|---|---|---|")
	fmt.Printf("| `pulley env plan` | %.2f s | %.2f s |\n", percentile(took, 50), percentile(took, 90))
	fmt.Printf("| `pulley env list`, in turn | %.3f s | %.3f s |\n\n", percentile(least, 50), percentile(least, 90))
}

//go:build e2e

package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/drivers/local"
	"pulley/internal/machines"
)

// A machine that was only asked for has to become a node and stay one, with nobody there who runs its agent.
func TestAKeptMachineBecomesANode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("promote", "1.0.0")
	p, err := local.NewProvider(local.ProviderConfig{
		Folder: t.TempDir(), Agent: filepath.Join(bin, "pulley-agent"), Interval: "@every 1s", Mark: machines.Mark{Owner: "test", Fleet: "dev"},
	})
	if err != nil {
		t.Fatal(err)
	}
	victim := machines.Ref{Name: "compute1"}
	t.Cleanup(func() { _ = p.Delete(context.WithoutCancel(t.Context()), victim) })
	script := f.pulley("userdata", "compute1", "--endpoints", f.endpoint)
	if _, err := p.Create(t.Context(), machines.Order{Name: "compute1", Node: "compute1", Role: "compute", Userdata: []byte(script)}); err != nil {
		t.Fatal(err)
	}
	machine := func() machines.Machine {
		machines, err := p.List(t.Context())
		if err != nil || len(machines) != 1 {
			t.Fatalf("%+v, %v", machines, err)
		}
		return machines[0]
	}
	deadline := time.Now().Add(3 * time.Minute)
	for status := ""; !strings.Contains(status, `"state": "converged"`); {
		status = f.pulley("status", "-o", "json") // before it joins, it is not in there
		if m := machine(); m.State == machines.Failed || time.Now().After(deadline) {
			t.Fatalf("%s\n%+v", status, m)
		}
		<-time.After(200 * time.Millisecond)
	}
	f.expect("compute1", "converged", "1.0.0", "changed")
	if m := machine(); m.State != machines.Running || m.Problem != "" || !strings.HasPrefix(m.Name, "compute1") {
		t.Errorf("%+v", m)
	}
	if err := p.Delete(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	if machines, err := p.List(t.Context()); err != nil || len(machines) > 0 {
		t.Errorf("%+v, %v", machines, err)
	}
}

package nspawn

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
)

// fleet returns the driver of a fleet.
func fleet(t *testing.T, root, owner, name string) *Provider {
	t.Helper()
	p, err := New(Config{Folder: root, Bridge: "no-such-bridge", Subnet: "10.9.0.0/16", Mark: machines.Mark{Owner: owner, Fleet: name}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// While the address of one machine is unknown, a new machine could get the same.
func TestDamagedRecordStopsCreate(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	dir := filepath.Join(p.Root, "a", "dev", "compute1")
	a := folder.About{Name: "compute1", ID: "1", Mark: p.Mark, Addresses: []string{"10.9.0.1"}}
	if err := errors.Join(os.MkdirAll(p.Root, 0o700), os.MkdirAll(dir, 0o700), folder.WriteJSON(filepath.Join(dir, folder.AboutFile), a)); err != nil {
		t.Fatal(err)
	}
	used, err := fleet(t, p.Root, "b", "dev").addresses()
	if err != nil || len(used) != 1 || used[0].String() != "10.9.0.1" {
		t.Errorf("addresses in use are %v, %v", used, err)
	}
	damaged := filepath.Join(dir, folder.AboutFile)
	if err := os.WriteFile(damaged, []byte(`{"name": "comp`), 0o600); err != nil {
		t.Fatal(err)
	}
	if used, err := p.addresses(); err == nil {
		t.Errorf("addresses in use are %v", used)
	}
	if _, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), damaged) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

// A machine must not differ from its order.
func TestImpossibleOrdersAreRefused(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	for want, o := range map[string]machines.Order{
		"not a hostname":       {Name: "../compute1"},
		"is not a hostname":    {Name: "compute1\n"},
		"have no flavors":      {Name: "compute1", Flavor: "large"},
		"leave out `networks`": {Name: "compute1", Networks: []string{"front"}},
		"has no image":         {Name: "compute1", Image: "debian-12"},
		"not a root file":      {Name: "compute1", Image: t.TempDir()},
	} {
		_, err := p.Create(t.Context(), o)
		if os.Geteuid() != 0 && want == "not a root file" {
			want = "it needs root"
		}
		if !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v is refused with: %v", o, err)
		}
	}
	if _, err := os.Lstat(p.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused order created the folder: %v", err)
	}
	for _, subnet := range []string{"10.9.0.1/16", "10.9.0.0", "fd00::/64", "10.9.0.0/31"} {
		if _, err := New(Config{Subnet: subnet, Mark: p.Mark}); err == nil {
			t.Errorf("subnet %s is accepted", subnet)
		}
	}
}

// In a container the root of the control groups can be killed: a missing group name must not reach it.
func TestOnlyMachineGroupsAreKilled(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"", "/", ".", "..", "/system.slice", "/pulley-machine-1/..", "/user.slice/pulley.service", "pulley-machine-1/../../x"} {
		if dir, err := groupDir("/sys/fs/cgroup", group); err == nil {
			t.Errorf("%q is %s", group, dir)
		}
	}
	for _, group := range []string{"/pulley-machine-1", "/machine.slice/pulley-machine-1.scope", "/a/pulley-machine-1/machine"} {
		if dir, err := groupDir("/sys/fs/cgroup", group); err != nil || dir != "/sys/fs/cgroup"+group {
			t.Errorf("%q is %s, %v", group, dir, err)
		}
	}
}

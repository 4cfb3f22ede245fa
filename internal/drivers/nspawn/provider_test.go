package nspawn

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
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

// left writes the folder of a machine without a supervisor.
func left(t *testing.T, p *Provider, name string, a about, s folder.State) {
	t.Helper()
	dir := filepath.Join(p.fleet.Path(), name)
	if err := errors.Join(os.MkdirAll(p.fleet.Root, 0o700), os.MkdirAll(filepath.Join(dir, "upper"), 0o700)); err != nil {
		t.Fatal(err)
	}
	a.Mark = p.config.Mark
	if err := errors.Join(folder.WriteJSON(filepath.Join(dir, folder.AboutFile), a), folder.WriteJSON(filepath.Join(dir, folder.StateFile), s)); err != nil {
		t.Fatal(err)
	}
}

func at(address string) network { return network{Address: netip.MustParsePrefix(address)} }

func names(t *testing.T, p *Provider) []string {
	t.Helper()
	machines, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range machines {
		names = append(names, m.Name+" "+string(m.State))
	}
	return names
}

// A plan that saw the machines of another fleet would retire them.
func TestFleetsAreSeparate(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "machines")
	marks := [][2]string{{"a", "dev"}, {"a", "dev@t1"}, {"b", "dev"}, {"..", "dev"}, {"a/dev", "x"}, {".lock", "dev"}, {"a", ".."}}
	for _, m := range marks {
		p := fleet(t, root, m[0], m[1])
		if got := names(t, p); got != nil {
			t.Errorf("%s has %v before the first machine", m, got)
		}
		left(t, p, "compute1", about{About: folder.About{Name: "compute1", ID: m[0] + m[1]}, Network: at("10.9.0.1/16")}, folder.State{State: machines.Stopped})
	}
	for _, m := range marks {
		if got := names(t, fleet(t, root, m[0], m[1])); !slices.Equal(got, []string{"compute1 stopped"}) {
			t.Errorf("%s has %v", m, got)
		}
	}
	gone := fleet(t, root, "a", "dev")
	if err := gone.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range marks[1:] {
		if got := names(t, fleet(t, root, m[0], m[1])); !slices.Equal(got, []string{"compute1 stopped"}) {
			t.Errorf("after a deletion in another fleet, %s has %v", m, got)
		}
	}
	if outside, _ := os.ReadDir(filepath.Dir(root)); len(outside) != 1 {
		t.Errorf("the parent of the folder has %v", outside)
	}
}

// After a restart of the host, or a kill of the supervisor, a machine does not run. A plan must not wait for it.
func TestMachinesWithoutSupervisorAreStopped(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Running})
	left(t, p, "compute2", about{About: folder.About{Name: "compute2", ID: "2"}}, folder.State{State: machines.Building})
	left(t, p, "compute3", about{About: folder.About{Name: "compute3", ID: "3"}}, folder.State{State: machines.Failed, Problem: "no"})
	left(t, p, ".new.compute4.4", about{About: folder.About{Name: "compute4", ID: "4"}}, folder.State{State: machines.Building})
	left(t, p, ".gone.compute5.5", about{About: folder.About{Name: "compute5", ID: "5"}}, folder.State{State: machines.Running})
	if got, want := names(t, p), []string{"compute1 stopped", "compute2 stopped", "compute3 failed"}; !slices.Equal(got, want) {
		t.Errorf("the machines are %v", got)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "2"}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, p); len(got) != 3 {
		t.Errorf("the ID of another machine deleted one: %v", got)
	}
	for range 2 {
		if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(p.fleet.Path())
	if len(entries) != 2 || entries[0].Name() != "compute2" {
		t.Errorf("leftovers remain: %v", entries)
	}
}

// Pulley must not delete what it has not made, even in its own folder.
func TestForeignFoldersStay(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	if err := errors.Join(os.MkdirAll(p.fleet.Root, 0o700), os.MkdirAll(p.fleet.Path(), 0o700)); err != nil {
		t.Fatal(err)
	}
	others := fleet(t, filepath.Join(t.TempDir(), "machines"), "b", "dev")
	left(t, others, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Running})
	copied := filepath.Join(p.fleet.Path(), "compute1")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(others.fleet.Path(), "compute1"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(p.fleet.Path(), "compute2"), 0o700), os.WriteFile(filepath.Join(p.fleet.Path(), "compute3"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := names(t, p); got != nil {
		t.Errorf("foreign folders are listed as %v", got)
	}
	for _, name := range []string{"compute1", "compute2", "compute3", "../dev/compute1", ".", ""} {
		if err := p.Delete(t.Context(), machines.Ref{Name: name}); err != nil {
			t.Errorf("deleting %q: %v", name, err)
		}
	}
	for _, path := range []string{"compute1/machine.json", "compute2", "compute3"} {
		if _, err := os.Lstat(filepath.Join(p.fleet.Path(), path)); err != nil {
			t.Error(err)
		}
	}
}

// While the address of one machine is unknown, a new machine could get the same.
func TestDamagedRecordStopsCreate(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}, Network: at("10.9.0.1/16")}, folder.State{State: machines.Running})
	used, err := fleet(t, p.fleet.Root, "b", "dev").addresses()
	if err != nil || len(used) != 1 || used[0].String() != "10.9.0.1" {
		t.Errorf("addresses in use are %v, %v", used, err)
	}
	damaged := filepath.Join(p.fleet.Path(), "compute1", folder.AboutFile)
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
		"not a hostname":    {Name: "../compute1"},
		"is not a hostname": {Name: "compute1\n"},
		"have no flavors":   {Name: "compute1", Flavor: "large"},
		"leave `networks`":  {Name: "compute1", Networks: []string{"front"}},
		"there is no image": {Name: "compute1", Image: "debian-12"},
		"not a root file":   {Name: "compute1", Image: t.TempDir()},
	} {
		_, err := p.Create(t.Context(), o)
		if os.Geteuid() != 0 && want == "not a root file" {
			want = "it needs root"
		}
		if !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v is refused with: %v", o, err)
		}
	}
	if _, err := os.Lstat(p.fleet.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused order created the folder: %v", err)
	}
	for _, subnet := range []string{"10.9.0.1/16", "10.9.0.0", "fd00::/64", "10.9.0.0/31"} {
		if _, err := New(Config{Subnet: subnet, Mark: p.config.Mark}); err == nil {
			t.Errorf("subnet %s is accepted", subnet)
		}
	}
}

// A changed image in the file must not make an apply fail for machines that already run.
func TestExistingMachineIsReturned(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Stopped})
	m, err := p.Create(t.Context(), machines.Order{Name: "compute1", Flavor: "large", Image: "debain"})
	if err != nil || m.ID != "1" {
		t.Errorf("%+v, %v", m, err)
	}
}

// A failed order must not leave a stopped machine, also where its supervisor had moved the folder.
func TestFailedStartIsUndone(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, ".new.compute1.1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Building})
	left(t, p, "compute2", about{About: folder.About{Name: "compute2", ID: "2"}}, folder.State{State: machines.Building}) // was moved
	left(t, p, "compute3", about{About: folder.About{Name: "compute3", ID: "another"}}, folder.State{State: machines.Running})
	for name, id := range map[string]string{"compute1": "1", "compute2": "2", "compute3": "3"} {
		if err := p.undo(t.Context(), about{About: folder.About{Name: name, ID: id}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(p.fleet.Path()); len(entries) != 1 || entries[0].Name() != "compute3" {
		t.Errorf("left: %v", entries)
	}
}

// Users who may write to the folder could make root delete files.
func TestWritableFolderIsRefused(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Stopped})
	if err := os.Chmod(p.fleet.Root, 0o777); err != nil {
		t.Fatal(err)
	}
	_, listErr := p.List(t.Context())
	_, createErr := p.Create(t.Context(), machines.Order{Name: "compute1", Flavor: "large"})
	for what, err := range map[string]error{"List": listErr, "Create": createErr, "Delete": p.Delete(t.Context(), machines.Ref{Name: "compute1"})} {
		if !errors.Is(err, machines.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(p.fleet.Path(), "compute1")); err != nil {
		t.Error(err)
	}
}

// Destroyed environments must not leave folders.
func TestLastMachineRemovesFleetFolder(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "machines")
	p, other := fleet(t, root, "a", "dev"), fleet(t, root, "a", "test")
	for _, f := range []*Provider{p, other} {
		left(t, f, "compute1", about{About: folder.About{Name: "compute1", ID: "1"}}, folder.State{State: machines.Stopped})
	}
	for _, step := range []struct {
		of   *Provider
		left []string
	}{{p, []string{".lock", "a"}}, {other, []string{".lock"}}} {
		if err := step.of.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(step.of.fleet.Path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", step.of.fleet.Path(), err)
		}
		var left []string
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, step.left) {
			t.Errorf("left: %v", left)
		}
	}
}

// An interrupted command must not wait for the removal of a large disk.
func TestEraseEndsWithContext(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	dir := filepath.Join(t.TempDir(), "large")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.erase(ended, dir); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); err != nil {
		t.Error(err)
	}
	if err := p.erase(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
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

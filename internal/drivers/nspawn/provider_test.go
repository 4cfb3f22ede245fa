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

	"pulley/internal/machines"
)

// fleet is the driver of a fleet in a folder.
func fleet(t *testing.T, folder, owner, name string) *Provider {
	t.Helper()
	p, err := New(Config{Folder: folder, Bridge: "no-such-bridge", Subnet: "10.9.0.0/16", Mark: machines.Mark{Owner: owner, Fleet: name}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// left puts a machine's folder where one was, whose keeper is gone.
func left(t *testing.T, p *Provider, folder string, a about, s state) {
	t.Helper()
	dir := filepath.Join(p.place(), folder)
	if err := errors.Join(p.makeFolder(), os.MkdirAll(filepath.Join(dir, "upper"), 0o700)); err != nil {
		t.Fatal(err)
	}
	a.Mark = p.config.Mark
	if err := errors.Join(writeJSON(filepath.Join(dir, aboutFile), a), writeJSON(filepath.Join(dir, stateFile), s)); err != nil {
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

// A fleet's plan that saw others' machines would retire them.
func TestFleetsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "machines")
	marks := [][2]string{{"a", "dev"}, {"a", "dev@t1"}, {"b", "dev"}, {"..", "dev"}, {"a/dev", "x"}, {".lock", "dev"}, {"a", ".."}}
	for _, m := range marks {
		p := fleet(t, folder, m[0], m[1])
		if got := names(t, p); got != nil {
			t.Errorf("%s begins with %v", m, got)
		}
		left(t, p, "compute1", about{Name: "compute1", ID: m[0] + m[1], Network: at("10.9.0.1/16")}, state{State: machines.Stopped})
	}
	for _, m := range marks {
		if got := names(t, fleet(t, folder, m[0], m[1])); !slices.Equal(got, []string{"compute1 stopped"}) {
			t.Errorf("%s has %v", m, got)
		}
	}
	gone := fleet(t, folder, "a", "dev")
	if err := gone.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range marks[1:] {
		if got := names(t, fleet(t, folder, m[0], m[1])); !slices.Equal(got, []string{"compute1 stopped"}) {
			t.Errorf("after another's was deleted, %s has %v", m, got)
		}
	}
	if outside, _ := os.ReadDir(filepath.Dir(folder)); len(outside) != 1 {
		t.Errorf("there is something beside the folder: %v", outside)
	}
}

// A host that was started again, or a keeper that was killed, leaves machines that do not run: a plan that took them for
// running would wait for ever.
func TestMachinesWithoutAKeeperAreOff(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{Name: "compute1", ID: "1"}, state{State: machines.Running})
	left(t, p, "compute2", about{Name: "compute2", ID: "2"}, state{State: machines.Building})
	left(t, p, "compute3", about{Name: "compute3", ID: "3"}, state{State: machines.Failed, Problem: "no"})
	left(t, p, newPrefix+"compute4.4", about{Name: "compute4", ID: "4"}, state{State: machines.Building})
	left(t, p, gonePrefix+"compute5.5", about{Name: "compute5", ID: "5"}, state{State: machines.Running})
	if got, want := names(t, p), []string{"compute1 stopped", "compute2 stopped", "compute3 failed"}; !slices.Equal(got, want) {
		t.Errorf("the machines are %v", got)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "2"}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, p); len(got) != 3 {
		t.Errorf("another machine's id deleted one: %v", got)
	}
	for range 2 {
		if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(p.place())
	if len(entries) != 2 || entries[0].Name() != "compute2" {
		t.Errorf("what was half made and half deleted stays: %v", entries)
	}
}

// What pulley has not made it must not delete, whatever lies in its folder.
func TestWhatIsNotOursStays(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	if err := errors.Join(p.makeFolder(), os.MkdirAll(p.place(), 0o700)); err != nil {
		t.Fatal(err)
	}
	others := fleet(t, filepath.Join(t.TempDir(), "machines"), "b", "dev")
	left(t, others, "compute1", about{Name: "compute1", ID: "1"}, state{State: machines.Running})
	copied := filepath.Join(p.place(), "compute1")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(others.place(), "compute1"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(p.place(), "compute2"), 0o700), os.WriteFile(filepath.Join(p.place(), "compute3"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := names(t, p); got != nil {
		t.Errorf("others' machines are %v", got)
	}
	for _, name := range []string{"compute1", "compute2", "compute3", "../dev/compute1", ".", ""} {
		if err := p.Delete(t.Context(), machines.Ref{Name: name}); err != nil {
			t.Errorf("deleting %q: %v", name, err)
		}
	}
	for _, path := range []string{"compute1/machine.json", "compute2", "compute3"} {
		if _, err := os.Lstat(filepath.Join(p.place(), path)); err != nil {
			t.Error(err)
		}
	}
}

// Where addresses are not known for certain, the next machine could get another one's.
func TestADamagedMachineStopsFurtherOnes(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{Name: "compute1", ID: "1", Network: at("10.9.0.1/16")}, state{State: machines.Running})
	used, err := fleet(t, p.config.Folder, "b", "dev").addresses()
	if err != nil || len(used) != 1 || used[0].String() != "10.9.0.1" {
		t.Errorf("addresses in use are %v, %v", used, err)
	}
	damaged := filepath.Join(p.place(), "compute1", aboutFile)
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

// An order that was carried out otherwise than written would make machines that nobody asked for.
func TestOrdersThatCanNotBeHadAreRefused(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	for want, o := range map[string]machines.Order{
		"no hostname":       {Name: "../compute1"},
		"is no hostname":    {Name: "compute1\n"},
		"have no flavors":   {Name: "compute1", Flavor: "large"},
		"leave `networks`":  {Name: "compute1", Networks: []string{"front"}},
		"there is no image": {Name: "compute1", Image: "debian-12"},
		"is no root folder": {Name: "compute1", Image: t.TempDir()},
	} {
		_, err := p.Create(t.Context(), o)
		if os.Geteuid() != 0 && want == "is no root folder" {
			want = "it needs root"
		}
		if !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v is refused with: %v", o, err)
		}
	}
	if _, err := os.Lstat(p.config.Folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made for them: %v", err)
	}
	for _, subnet := range []string{"10.9.0.1/16", "10.9.0.0", "fd00::/64", "10.9.0.0/31"} {
		if _, err := New(Config{Subnet: subnet, Mark: p.config.Mark}); err == nil {
			t.Errorf("subnet %s is taken", subnet)
		}
	}
}

// Who has written `image: debain` into a file since would be told that machines are refused that have run for weeks.
func TestAMachineThatIsThereIsReturnedWhateverTheOrderSays(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{Name: "compute1", ID: "1"}, state{State: machines.Stopped})
	m, err := p.Create(t.Context(), machines.Order{Name: "compute1", Flavor: "large", Image: "debain"})
	if err != nil || m.ID != "1" {
		t.Errorf("%+v, %v", m, err)
	}
}

// A keeper that was too slow to answer would leave a machine that is off, for an order that failed.
func TestAMachineThatCouldNotBeStartedIsUndoneWhereverItIs(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, newPrefix+"compute1.1", about{Name: "compute1", ID: "1"}, state{State: machines.Building})
	left(t, p, "compute2", about{Name: "compute2", ID: "2"}, state{State: machines.Building}) // it was moved
	left(t, p, "compute3", about{Name: "compute3", ID: "another"}, state{State: machines.Running})
	for name, id := range map[string]string{"compute1": "1", "compute2": "2", "compute3": "3"} {
		if err := p.undo(t.Context(), about{Name: name, ID: id}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(p.place()); len(entries) != 1 || entries[0].Name() != "compute3" {
		t.Errorf("left: %v", entries)
	}
}

// Anybody who may write to the folder could make root delete what they name.
func TestAFolderOfOthersIsNotBelieved(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", about{Name: "compute1", ID: "1"}, state{State: machines.Stopped})
	if err := os.Chmod(p.config.Folder, 0o777); err != nil {
		t.Fatal(err)
	}
	_, listErr := p.List(t.Context())
	_, createErr := p.Create(t.Context(), machines.Order{Name: "compute1", Flavor: "large"})
	for what, err := range map[string]error{"List": listErr, "Create": createErr, "Delete": p.Delete(t.Context(), machines.Ref{Name: "compute1"})} {
		if !errors.Is(err, machines.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(p.place(), "compute1")); err != nil {
		t.Error(err)
	}
}

// Each trial of a provider, and each environment that was destroyed, would leave folders for ever.
func TestTheLastMachineTakesItsFleetsFolderAlong(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "machines")
	p, other := fleet(t, folder, "a", "dev"), fleet(t, folder, "a", "test")
	for _, f := range []*Provider{p, other} {
		left(t, f, "compute1", about{Name: "compute1", ID: "1"}, state{State: machines.Stopped})
	}
	for _, step := range []struct {
		of   *Provider
		left []string
	}{{p, []string{".lock", "a"}}, {other, []string{".lock"}}} {
		if err := step.of.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(step.of.place()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays: %v", step.of.place(), err)
		}
		var left []string
		entries, _ := os.ReadDir(folder)
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, step.left) {
			t.Errorf("left: %v", left)
		}
	}
}

// An interrupted command would go on removing a disk of gigabytes, or wait half a minute for a process that does not end.
func TestErasingHeedsItsContext(t *testing.T) {
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
		t.Errorf("it stays: %v", err)
	}
}

// In a container, whose groups' root can be ended, a machine of which the group is not known would take all with it.
func TestOnlyGroupsOfMachinesAreEnded(t *testing.T) {
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

package folder

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
)

// fleet returns a fleet whose machines never start.
func fleet(t *testing.T, root, owner, name string) Fleet {
	t.Helper()
	f := Fleet{Driver: environments.DriverNspawn, Root: root, Mark: machines.Mark{Owner: owner, Fleet: name}}
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	return f
}

// left writes the folder of a machine without a supervisor.
func left(t *testing.T, p Fleet, name string, a About, s State) {
	t.Helper()
	dir := filepath.Join(p.path(), name)
	if err := errors.Join(os.MkdirAll(p.Root, 0o700), os.MkdirAll(filepath.Join(dir, "upper"), 0o700)); err != nil {
		t.Fatal(err)
	}
	a.Mark = p.Mark
	if err := errors.Join(WriteJSON(filepath.Join(dir, AboutFile), a), WriteJSON(filepath.Join(dir, StateFile), s)); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, p Fleet) []string {
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
		left(t, p, "compute1", About{Name: "compute1", ID: m[0] + m[1]}, State{State: machines.Stopped})
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
	left(t, p, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Running})
	left(t, p, "compute2", About{Name: "compute2", ID: "2"}, State{State: machines.Building})
	left(t, p, "compute3", About{Name: "compute3", ID: "3"}, State{State: machines.Failed, Problem: "no"})
	left(t, p, ".new.compute4.4", About{Name: "compute4", ID: "4"}, State{State: machines.Building})
	left(t, p, ".gone.compute5.5", About{Name: "compute5", ID: "5"}, State{State: machines.Running})
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
	entries, _ := os.ReadDir(p.path())
	if len(entries) != 2 || entries[0].Name() != "compute2" {
		t.Errorf("leftovers remain: %v", entries)
	}
}

// A deletion must not wait minutes for a supervisor that it cannot find.
func TestDeleteReportsLockWithoutHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
		left(t, p, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Running})
		held, err := lock(t.Context(), filepath.Join(p.path(), "compute1", heldFile))
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		began := time.Now()
		err = p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: "1"})
		if err == nil || !strings.Contains(err.Error(), "the supervisor that locks") {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the error came after %s", took)
		}
		if got := names(t, p); !slices.Equal(got, []string{"compute1 running"}) {
			t.Errorf("the machines are %v", got)
		}
	})
}

// Pulley must not delete what it has not made, even in its own folder.
func TestForeignFoldersStay(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	if err := errors.Join(os.MkdirAll(p.Root, 0o700), os.MkdirAll(p.path(), 0o700)); err != nil {
		t.Fatal(err)
	}
	others := fleet(t, filepath.Join(t.TempDir(), "machines"), "b", "dev")
	left(t, others, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Running})
	copied := filepath.Join(p.path(), "compute1")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(others.path(), "compute1"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(p.path(), "compute2"), 0o700), os.WriteFile(filepath.Join(p.path(), "compute3"), nil, 0o600)); err != nil {
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
		if _, err := os.Lstat(filepath.Join(p.path(), path)); err != nil {
			t.Error(err)
		}
	}
}

// A changed image in the file must not make an apply fail for machines that already run.
func TestExistingMachineIsReturned(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Stopped})
	m, err := p.Create(t.Context(), machines.Order{Name: "compute1", Flavor: "large", Image: "debain"}, nil, nil)
	if err != nil || m.ID != "1" {
		t.Errorf("%+v, %v", m, err)
	}
}

// A failed order must not leave a stopped machine, also where its supervisor had moved the folder.
func TestFailedStartIsUndone(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, ".new.compute1.1", About{Name: "compute1", ID: "1"}, State{State: machines.Building})
	left(t, p, "compute2", About{Name: "compute2", ID: "2"}, State{State: machines.Building}) // was moved
	left(t, p, "compute3", About{Name: "compute3", ID: "another"}, State{State: machines.Running})
	for name, id := range map[string]string{"compute1": "1", "compute2": "2", "compute3": "3"} {
		if err := p.undo(t.Context(), About{Name: name, ID: id}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(p.path()); len(entries) != 1 || entries[0].Name() != "compute3" {
		t.Errorf("left: %v", entries)
	}
}

// Users who may write to the folder could make root delete files.
func TestWritableFolderIsRefused(t *testing.T) {
	t.Parallel()
	p := fleet(t, filepath.Join(t.TempDir(), "machines"), "a", "dev")
	left(t, p, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Stopped})
	if err := os.Chmod(p.Root, 0o777); err != nil {
		t.Fatal(err)
	}
	_, listErr := p.List(t.Context())
	_, createErr := p.Create(t.Context(), machines.Order{Name: "compute2"}, func() error { return nil }, nil)
	for what, err := range map[string]error{"List": listErr, "Create": createErr, "Delete": p.Delete(t.Context(), machines.Ref{Name: "compute1"})} {
		if !errors.Is(err, machines.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(p.path(), "compute1")); err != nil {
		t.Error(err)
	}
}

// Destroyed environments must not leave folders.
func TestLastMachineRemovesFleetFolder(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "machines")
	p, other := fleet(t, root, "a", "dev"), fleet(t, root, "a", "test")
	for _, f := range []Fleet{p, other} {
		left(t, f, "compute1", About{Name: "compute1", ID: "1"}, State{State: machines.Stopped})
	}
	for _, step := range []struct {
		of   Fleet
		left []string
	}{{p, []string{".lock", "a"}}, {other, []string{".lock"}}} {
		if err := step.of.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(step.of.path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", step.of.path(), err)
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

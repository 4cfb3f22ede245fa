//go:build bench

package bench

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// sharedFiles is the number of files in the tree for the comparison of sharing methods.
const sharedFiles = 10_000

// TestBenchSharing compares ways to put a release beside another that differs in one file: a hard link for each equal
// file, or a symbolic link for each equal module. It measures plain code, without the other work of an installation.
func TestBenchSharing(t *testing.T) {
	requirePeers(t, "git")
	source := largeTree(t)
	old := layOut(t, source, t.TempDir())
	fmt.Printf("\nsharing what did not change, %d files in %d folders, one file changed, %d runs each, in turn\n\n", len(old.files), len(old.folders), shareRuns)
	var made string
	fresh := func() (err error) {
		made, err = os.MkdirTemp(filepath.Dir(old.root), "new-")
		return err
	}
	names, builds := []string{}, map[string]func() error{}
	add := func(name string, build func() error) { names, builds[name] = append(names, name), build }
	add("a hard link for each file, one thread, syncfs", func() error { return linkTree(old, made, 1, true) })
	add("a hard link for each file, two threads, syncfs", func() error { return linkTree(old, made, 2, true) })
	add("a hard link for each file, two threads, fsync of folders", func() error { return linkTree(old, made, 2, false) })
	add("a symbolic link for each module, syncfs", func() error { return shareModules(old, made, true) })
	add("a symbolic link for each module, fsync of what is new", func() error { return shareModules(old, made, false) })
	built, removed := map[string]figures{}, map[string]figures{}
	for range shareRuns {
		for _, name := range names {
			if err := fresh(); err != nil {
				t.Fatal(err)
			}
			unix.Sync()
			built[name] = append(built[name], seconds(t, builds[name]))
			removed[name] = append(removed[name], seconds(t, func() error { return os.RemoveAll(made) }))
		}
	}
	fmt.Println("| | ms, median [least–most] | removing it, ms |")
	fmt.Println("|---|---|---|")
	for _, name := range names {
		fmt.Printf("| %s | %s | %s |\n", name, built[name].times(1e3).spread(1), removed[name].times(1e3).spread(1))
	}
	fmt.Println()
}

const shareRuns = 5

// layout is a tree that was written twice: complete in root, and module by module in modules, each under its own name.
type layout struct {
	root, modules  string
	folders, files []string // relative to root
}

// largeTree returns the tree of Debian's modules, repeated under other names until it is large enough.
func largeTree(t *testing.T) string {
	t.Helper()
	from, to := debianTree(t), t.TempDir()
	for n, files := 1, 0; files < sharedFiles; n++ {
		modules, err := os.ReadDir(filepath.Join(from, "modules"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range modules {
			if files >= sharedFiles {
				break
			}
			target := filepath.Join(to, "modules", fmt.Sprintf("%s_%d", m.Name(), n))
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := command("cp", "-a", filepath.Join(from, "modules", m.Name()), target); err != nil {
				t.Fatal(err)
			}
			_, more := walk(t, target)
			files += len(more)
		}
	}
	return to
}

func walk(t *testing.T, dir string) (folders, files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		switch {
		case err != nil || name == "":
			return err
		case d.IsDir():
			folders = append(folders, name)
		case d.Type().IsRegular():
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return folders, files
}

func layOut(t *testing.T, source, dir string) layout {
	t.Helper()
	l := layout{root: filepath.Join(dir, "old"), modules: filepath.Join(dir, "modules")}
	l.folders, l.files = walk(t, source)
	for _, to := range []string{l.root, l.modules} {
		from := source
		if to == l.modules {
			from = filepath.Join(source, "modules")
		}
		if err := command("cp", "-a", from, to); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// changed returns the file that differs, in the middle of the tree.
func (l layout) changed() string { return l.files[len(l.files)/2] }

// linkTree creates all folders, links all files except the changed one, and writes that.
func linkTree(l layout, to string, threads int, whole bool) error {
	for _, d := range l.folders {
		if err := os.Mkdir(filepath.Join(to, d), 0o755); err != nil {
			return err
		}
	}
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for n := range threads {
		wg.Go(func() {
			for i := n * len(l.files) / threads; i < (n+1)*len(l.files)/threads && errs[n] == nil; i++ {
				if name := l.files[i]; name != l.changed() {
					errs[n] = os.Link(filepath.Join(l.root, name), filepath.Join(to, name))
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(to, l.changed()), []byte("changed\n"), 0o644); err != nil {
		return err
	}
	if whole {
		return syncfs(to)
	}
	return fsyncAll(to, append([]string{".", l.changed()}, l.folders...))
}

// shareModules writes the changed module anew, with links for its other files, and links all other modules.
func shareModules(l layout, to string, whole bool) error {
	module := strings.Split(l.changed(), "/")[1]
	modules := filepath.Join(to, "modules")
	if err := os.Mkdir(modules, 0o755); err != nil {
		return err
	}
	others, err := os.ReadDir(l.modules)
	if err != nil {
		return err
	}
	for _, m := range others {
		if m.Name() != module {
			if err := os.Symlink("../../modules/"+m.Name(), filepath.Join(modules, m.Name())); err != nil {
				return err
			}
		}
	}
	part := layout{root: filepath.Join(l.modules, module)}
	prefix := "modules/" + module + "/"
	for _, d := range l.folders {
		if name, ok := strings.CutPrefix(d, prefix); ok {
			part.folders = append(part.folders, name)
		}
	}
	for _, f := range l.files {
		if name, ok := strings.CutPrefix(f, prefix); ok {
			part.files = append(part.files, name)
		}
	}
	// In the real tree of releases, a new module is stored among the modules, and only linked here. The number of steps
	// is equal.
	if err := os.Mkdir(filepath.Join(modules, module), 0o755); err != nil {
		return err
	}
	if err := linkTree(part, filepath.Join(modules, module), 1, whole); err != nil {
		return err
	}
	return fsyncAll(to, []string{".", "modules"})
}

func fsyncAll(root string, names []string) error {
	for _, name := range names {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

package controlrepo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/puppet"
)

// pulleyignore excludes files for operators and editors from releases.
const pulleyignore = "# For operators and their editors: nodes don't need it, and it stays out of releases.\nclouds\nenvironments/*.schema.json\n"

const gitignore = `# Editors' leftovers
*~
.*.sw?

# Private keys never belong into a release: every node would have them.
*.key
*.pem
`

// notEmptyError reports that a folder is not empty.
type notEmptyError struct {
	Dir   string
	Names []string // its entries, sorted
}

// Error names the folder and the first few of the names.
func (e *notEmptyError) Error() string {
	names := e.Names
	more := ""
	if len(names) > 5 {
		more = fmt.Sprintf(" and %d more", len(names)-5)
		names = names[:5]
	}
	return fmt.Sprintf("cannot write a control repository to %s: it already holds %s%s", e.Dir, strings.Join(names, ", "), more)
}

// Hint returns the remedy.
func (e *notEmptyError) Hint() string { return "give a folder that is empty or does not exist yet" }

// Init writes a new control repository to dir. It creates dir if needed; an existing dir may contain only .git. It
// returns the written files, relative to dir, sorted. After an error dir is unchanged.
func Init(dir string) ([]string, error) {
	made, err := makeEmpty(dir)
	if err != nil {
		return nil, err
	}
	files, err := fill(dir)
	if err != nil {
		if made {
			err = errors.Join(err, os.Remove(dir))
		}
		return nil, fmt.Errorf("cannot write a control repository to %s: %w", dir, err)
	}
	return files, nil
}

// makeEmpty creates dir, or checks that it is empty; made reports that dir is new.
func makeEmpty(dir string) (made bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return false, fmt.Errorf("cannot write a control repository: %w", err)
		}
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot write a control repository: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != ".git" {
			names = append(names, e.Name())
		}
	}
	if len(names) > 0 {
		return false, &notEmptyError{dir, names}
	}
	return false, nil
}

// fill writes all files to a folder inside dir and moves them up at the end. A full disk therefore leaves no partial
// repository.
func fill(dir string) (files []string, err error) {
	staging, err := os.MkdirTemp(dir, ".pulley-init-")
	if err != nil {
		return nil, err
	}
	var moved []string
	defer func() {
		err = errors.Join(err, os.RemoveAll(staging))
		if err == nil {
			return
		}
		for _, name := range moved {
			err = errors.Join(err, os.RemoveAll(name))
		}
	}()
	root, err := os.OpenRoot(staging)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, source := range []struct {
		into  string
		files fs.FS
	}{{".", puppet.Repo()}, {".", environments.Samples()}, {"hieradata", hieradata.Sample()}} {
		written, err := copyTree(root, source.into, source.files)
		if err != nil {
			return nil, err
		}
		files = append(files, written...)
	}
	for _, file := range []struct{ name, text string }{
		{".gitignore", gitignore},
		{".pulleyignore", pulleyignore},
		{"environments/environment.schema.json", environments.Schema()}, // for editors, next to the files
		{"clouds/cloud.schema.json", environments.CloudSchema()},
	} {
		if err := root.WriteFile(file.name, []byte(file.text), 0o644); err != nil {
			return nil, err
		}
		files = append(files, file.name)
	}
	entries, err := os.ReadDir(staging)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		to := filepath.Join(dir, e.Name())
		if err := os.Rename(filepath.Join(staging, e.Name()), to); err != nil {
			return nil, err
		}
		moved = append(moved, to)
	}
	slices.Sort(files)
	return files, nil
}

func copyTree(root *os.Root, into string, source fs.FS) (files []string, err error) {
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := path.Join(into, name)
		if d.IsDir() {
			return root.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}
		files = append(files, to)
		return root.WriteFile(to, data, mode(to))
	})
	return files, err
}

// mode returns the mode of a file. Embedded files have no modes.
func mode(name string) fs.FileMode {
	if isHook(name) {
		return 0o755
	}
	return 0o644
}

// isHook reports whether a file is a program that nodes run in addition to Puppet.
func isHook(name string) bool {
	return slices.Contains([]string{"validate.d", "retire.d", "hosts.d"}, path.Dir(name))
}

//go:build e2e

package nspawn

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// Read returns a file of the machine, on or off. Absolute paths; links that lead out of the machine are refused.
func (m *Machine) Read(name string) string {
	m.t.Helper()
	text, err := m.read(name)
	if err != nil {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	return text
}

func (m *Machine) read(name string) (string, error) {
	root, err := os.OpenRoot(m.root())
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile(rel(name))
	return string(b), err
}

// Has reports whether the machine has a file or folder of this name.
func (m *Machine) Has(name string) bool {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	_, err = root.Lstat(rel(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return err == nil
}

// Stat describes a file of the machine.
func (m *Machine) Stat(name string) fs.FileInfo {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	info, err := root.Lstat(rel(name))
	if err != nil {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	return info
}

// List returns the names of a folder's files and folders; none when there is no such folder.
func (m *Machine) List(name string) []string {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), rel(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Write puts a file onto the disk of a machine that is off, with its folder.
func (m *Machine) Write(name, text string) {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll(path.Dir(rel(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := root.WriteFile(rel(name), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func rel(name string) string { return strings.TrimPrefix(name, "/") }

// Wait polls until the condition holds. It returns what is missing, for the one who reads why the test failed; "" is when
// it holds. A machine that ended by itself has no future in which it could hold.
func (m *Machine) Wait(what string, within time.Duration, missing func() string) {
	m.t.Helper()
	for start := time.Now(); ; time.Sleep(pollInterval) {
		on := m.On()
		why := missing()
		switch {
		case why == "":
			return
		case !on:
			m.t.Fatalf("%s is off, and %s is not reached: %s\n%s", m.Name, what, why, m.Story())
		case time.Since(start) > within:
			m.t.Fatalf("%s: %s is not reached in %s: %s\n%s", m.Name, what, within, why, m.Story())
		}
	}
}

package local

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// identity has the files of the host's /etc that the machine takes over.
type identity struct {
	hosts  string
	resolv string // empty where the host has none
}

// readHost reads files that the overlay does not show: in a container they are mounts, and on many hosts resolv.conf is a link into
// /run.
func (s *setup) readHost() (err error) {
	if s.identity.hosts, err = readIfThere("/etc/hosts"); err != nil {
		return err
	}
	s.identity.resolv, err = readIfThere("/etc/resolv.conf")
	return err
}

func (s *setup) writeIdentity() error {
	name := s.config.Hostname
	if err := unix.Sethostname([]byte(name)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	id := make([]byte, 16)
	rand.Read(id)
	machineID := fmt.Sprintf("%x\n", id)
	files := map[string]string{
		"/etc/hostname":   name + "\n",
		"/etc/machine-id": machineID,
		// Debian maps a host's own name to 127.0.1.1.
		"/etc/hosts": "127.0.1.1 " + name + "\n" + withoutName(s.identity.hosts, name),
	}
	if s.identity.resolv != "" {
		files["/etc/resolv.conf"] = s.identity.resolv
	}
	// Usually a link to /etc/machine-id. A file would be the host's.
	if info, err := os.Lstat("/var/lib/dbus/machine-id"); err == nil && info.Mode().IsRegular() {
		files["/var/lib/dbus/machine-id"] = machineID
	}
	for path, text := range files {
		if err := replaceFile(path, text); err != nil {
			return err
		}
	}
	return nil
}

// withoutName returns the hosts file without the lines of the name.
func withoutName(hosts, name string) string {
	var kept strings.Builder
	for line := range strings.Lines(hosts) {
		words, _, _ := strings.Cut(line, "#")
		if names := strings.Fields(words); len(names) < 2 || !slices.Contains(names[1:], name) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func readIfThere(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// replaceFile writes a regular file, and replaces a link.
func replaceFile(path, text string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

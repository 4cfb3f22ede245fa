//go:build e2e

package nspawn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/firstboot"
	"pulley/internal/pki"
)

// ownedDirs are where a first boot writes.
var ownedDirs = []string{"/etc/pulley", "/etc/cron.d", "/etc/systemd/system", "/etc/apt/sources.list.d", "/usr/local", "/var/lib/pulley"}

// EndState is what a first boot leaves on its machine and in etcd, one fact a line, without what differs between two
// machines by right: names, addresses, keys, times.
func (f *Fleet) EndState(m *Machine, node string) string {
	m.t.Helper()
	var b strings.Builder
	for _, dir := range ownedDirs {
		_ = filepath.WalkDir(filepath.Join(m.root(), dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					name := strings.TrimPrefix(path, m.root())
					fmt.Fprintf(&b, "%s %s%s\n", info.Mode(), name, m.fact(name, info, node))
				}
			}
			if err != nil {
				m.t.Errorf("cannot look at %s of %s: %v", path, m.Name, err)
			}
			return nil
		})
	}
	for _, program := range [][]string{{"dpkg", "--audit"}, {"dpkg-query", "-W"}, {"systemctl", "list-unit-files", "pulley*", "--no-legend"}, {"hostname"}} {
		out, err := m.In(time.Minute, program[0], program[1:]...)
		if err != nil && program[0] != "systemctl" { // which fails when there are none
			m.t.Errorf("%s in %s: %v: %s", program, m.Name, err, out)
		}
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(program, " "), out)
	}
	fmt.Fprintf(&b, "as operators see it: %s\n", f.seen(m, node))
	return strings.NewReplacer(node, "NODE", m.Address, "ADDRESS", strings.TrimSpace(m.Read("/etc/machine-id")), "MACHINE").Replace(b.String())
}

// fact is what counts of one file.
func (m *Machine) fact(name string, info fs.FileInfo, node string) string {
	m.t.Helper()
	if info.Mode()&fs.ModeSymlink != 0 {
		target, _ := os.Readlink(filepath.Join(m.root(), name))
		return " -> " + target
	}
	if !info.Mode().IsRegular() {
		return ""
	}
	for _, own := range []string{"/var/lib/pulley/puppet/", "/var/lib/pulley/runs/"} { // Puppet's own: times, mostly
		if strings.HasPrefix(name, own) {
			return ""
		}
	}
	text := m.Read(name)
	switch {
	case strings.HasSuffix(name, "identity/node.pem"):
		return ": " + m.identity(name, node)
	case name == stateFile:
		s := m.FirstBoot()
		var is []string
		for _, step := range firstboot.Names() {
			is = append(is, fmt.Sprintf("%s %s%s", step, s.Steps[step].State, s.Steps[step].Error))
		}
		return ": " + strings.Join(is, ", ")
	case strings.HasSuffix(name, ".json"):
		return " " + strings.Join(keys(text), ",") // times and digests of this machine's runs
	case len(text) > 8<<10:
		return fmt.Sprintf(": %x", sha256.Sum256([]byte(text)))
	}
	return ": " + strings.ReplaceAll(text, "\n", "\n  ")
}

// identity says whether the machine has the key and a certificate of this node, of the CA that it knows.
func (m *Machine) identity(name, node string) string {
	m.t.Helper()
	identity, err := pki.LoadIdentity(filepath.Join(m.root(), name))
	if err != nil {
		return err.Error()
	}
	leaf := identity.Certificates[0]
	is, err := pki.ParseName(leaf.Subject.CommonName)
	if err != nil {
		return err.Error()
	}
	if is.Kind != pki.KindNode || is.Environment != "dev" || is.Subject != node {
		return "it is of " + leaf.Subject.CommonName
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(m.Read(filepath.Join(filepath.Dir(name), "ca.pem"))))
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err.Error()
	}
	m.user = leaf.Subject.CommonName
	return "the node's own, of this CA"
}

// seen is what operators see of a node.
func (f *Fleet) seen(m *Machine, node string) string {
	f.t.Helper()
	h, s := f.Host(node), f.Status(node)
	var tokens []struct {
		Node string
		Used int
	}
	f.JSON(&tokens, "token", "list")
	used := 0
	for _, t := range tokens {
		if t.Node == node {
			used += t.Used
		}
	}
	return fmt.Sprintf("%s, a %s called %s at %v; registered %t, as this machine %t; its first boot finished %t; joined %t with this certificate, %d uses of tokens; %s %s %s",
		h.Node, h.Role, h.Hostname, h.Addresses, h.Registered, h.MachineID == strings.TrimSpace(m.Read("/etc/machine-id")),
		!h.FirstBoot.Finished.IsZero() && h.FirstBoot.Error == "", h.Joined.User == m.user && m.user != "", used, s.State, s.Release, s.Reason)
}

// keys are those of a JSON object, in their order.
func keys(text string) []string {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return []string{err.Error()}
	}
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

package local

import (
	"errors"
	"os"
	"testing"
)

// Writing the settings of a machine must not write those of the host.
func TestLinksLeadToMachineFiles(t *testing.T) {
	m := startMachine(t, Config{})
	word := marker(t)
	link := "/etc/" + word
	sh(t, m, "mkdir /var/real; ln -s /var/real "+link+"; ln -s /../../../../var/real/secret /var/real/sideways; ln -s /etc/hostname /var/real/file; mkfifo /var/real/fifo")
	for _, path := range []string{link + "/deep/er/settings.yaml", "/../../var/real/up", "/var/real/file"} {
		if err := m.WriteFile(path, []byte(path), 0o640); err != nil {
			t.Error(err)
			continue
		}
		if got, err := m.ReadFile(path); err != nil || string(got) != path {
			t.Errorf("%s holds %q, %v", path, got, err)
		}
	}
	if got := sh(t, m, "stat -c '%a %U' /var/real/deep/er/settings.yaml; cat /etc/hostname; ls -A /var/real | tr '\\n' ' '"); got != "640 root\n"+m.hostname+"\ndeep fifo file sideways up" {
		t.Errorf("in the machine: %q", got)
	}
	for _, path := range []string{link, "/var/real"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is on the host", path)
		}
	}
	if _, err := m.ReadFile("/no/such"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, path := range []string{"/var/real/fifo", "/etc"} {
		if _, err := m.ReadFile(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if err := m.WriteFile("/", nil, 0o600); err == nil {
		t.Error("/ was written")
	}
	if err := m.WriteFile("/etc/hostname/x", nil, 0o600); err == nil {
		t.Error("a file was replaced by a folder")
	}
}

package local

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// keepScratch creates a scratch folder with a file, prints its path, and waits to be killed.
func keepScratch(base string) (int, error) {
	s, err := NewScratch(base)
	if err != nil {
		return 1, err
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, "etcd", "member"), 0o700); err != nil {
		return 1, err
	}
	os.Stdout.WriteString(s.Dir + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0, s.Close()
}

// The data of a killed demo must be removed, and that of a running one must stay.
func TestNewScratchRemovesFoldersOfDeadOwners(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	own, err := NewScratch(base)
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(base, "somebody-elses")
	halfMade := filepath.Join(base, scratchPrefix+"half")
	for _, dir := range []string{foreign, halfMade} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	owner := exec.Command("/proc/self/exe")
	owner.Args = []string{argScratch, base}
	stdin, _ := owner.StdinPipe()
	defer stdin.Close()
	stdout, _ := owner.StdoutPipe()
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(line)
	if _, err := os.Stat(halfMade); !os.IsNotExist(err) {
		t.Errorf("%s still exists: %v", halfMade, err)
	}
	for _, living := range []string{own.Dir, dir + "/etcd/member", foreign} {
		if _, err := os.Stat(living); err != nil {
			t.Error(err)
		}
	}
	owner.Process.Kill()
	_ = owner.Wait()
	next, err := NewScratch(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s still exists: %v", dir, err)
	}
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(own.Dir); !os.IsNotExist(err) {
		t.Errorf("%s still exists: %v", own.Dir, err)
	}
}

// Users who may write to the folder could make root delete files.
func TestScratchRefusesWritableBase(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{open, link} {
		if _, err := NewScratch(base); err == nil || !strings.Contains(err.Error(), "only this user") {
			t.Errorf("NewScratch(%s): %v", base, err)
		}
	}
}

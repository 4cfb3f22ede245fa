package pki

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A rotation that loses trust in any client takes a fleet down.
func TestRotationKeepsTrust(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	serve, verb := open(t, dir, Options{}), open(t, dir, Options{})
	before := client(t, serve, time.Hour)
	bundleBefore, pins := serve.Bundle(), serve.Fingerprints()

	if err := verb.Rotate(false); err != nil {
		t.Fatal(err)
	}
	after := client(t, serve, time.Hour) // the process that was already running
	if got := serve.Fingerprints(); got[0] != pins[1] || got[1] == pins[0] || got[1] == pins[1] {
		t.Errorf("pins were %q and are %q", pins, got)
	}
	for _, c := range []struct {
		what   string
		bundle []byte
		id     Identity
	}{
		{"before by before", bundleBefore, before}, {"after by before", bundleBefore, after},
		{"before by after", serve.Bundle(), before}, {"after by after", serve.Bundle(), after},
	} {
		if err := trusted(t, c.bundle, c.id.Leaf(), now); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if err := verb.Rotate(false); err == nil || !strings.Contains(err.Error(), "still trusted") {
		t.Errorf("a second rotation drops the first CA: %v", err)
	}
	if err := verb.Retire(); err != nil {
		t.Fatal(err)
	}
	if trusted(t, serve.Bundle(), before.Leaf(), now) == nil {
		t.Error("the retired CA is trusted")
	}
	if err := verb.Rotate(false); err != nil {
		t.Error(err)
	}
	if err := verb.Rotate(true); err != nil {
		t.Error(err)
	}
	if n := strings.Count(string(serve.Bundle()), "BEGIN CERT"); n != 3 {
		t.Errorf("%d CAs are trusted", n)
	}
}

// A power loss during a rotation must not leave a CA without its key, nor a client without trust.
func TestInterruptedRotationIsCompleted(t *testing.T) {
	move := func(t *testing.T, dir, from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name string
		do   func(t *testing.T, dir string, was map[string]string)
	}{
		{"previous is written", func(t *testing.T, dir string, was map[string]string) {
			write(t, filepath.Join(dir, previousCert), was[currentCert])
		}},
		{"current is replaced", func(t *testing.T, dir string, was map[string]string) {
			write(t, filepath.Join(dir, currentCert), was[nextCert])
		}},
		{"its key is moved", func(t *testing.T, dir string, _ map[string]string) { move(t, dir, nextKey, currentKey) }},
		{"a new key is made", func(t *testing.T, dir string, _ map[string]string) {
			if err := SaveKey(filepath.Join(dir, nextKey), newKey(t)); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for cut := range steps {
		dir := t.TempDir()
		running := open(t, dir, Options{})
		pins, was, old := running.Fingerprints(), files(t, dir), client(t, running, time.Hour)
		for _, s := range steps[:cut+1] {
			s.do(t, dir, was)
		}
		// The running process sees the current folder. The next process finishes it.
		for who, ca := range map[string]*CA{"running": running, "started": open(t, dir, Options{})} {
			id := client(t, ca, time.Hour)
			for what, leaf := range map[string]Identity{"old": old, "new": id} {
				if err := trusted(t, ca.Bundle(), leaf.Leaf(), time.Now()); err != nil {
					t.Errorf("cut off after %q: %s, %s: %v", steps[cut].name, who, what, err)
				}
			}
			want := pins[min(cut, 1)] // from the second step on the next CA signs
			if got := ca.Fingerprints(); got[0] != want || who == "started" && len(got) != 2 {
				t.Errorf("cut off after %q: %s: pins were %q and are %q", steps[cut].name, who, pins, got)
			}
		}
	}
}

// A client whose bundle is older than the next CA does not trust that CA yet.
func TestNextSinceIsPublicationTime(t *testing.T) {
	dir, began := t.TempDir(), time.Now().Add(-time.Second)
	ca := open(t, dir, Options{})
	since, ok := ca.NextSince()
	if !ok || since.Before(began.Truncate(time.Second)) || since.After(time.Now().Add(time.Second)) {
		t.Errorf("published %s, %v", since, ok)
	}
	later := time.Now().Add(3 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, nextCert), later, later); err != nil {
		t.Fatal(err)
	}
	if since, _ := ca.NextSince(); !since.Equal(later) {
		t.Errorf("a certificate that was put there later counts from %s", since)
	}
}

// A backup during a rotation must not have the key of one CA and the certificate of another.
func TestReadFolderWaitsForAChange(t *testing.T) {
	t.Parallel()
	ca, read := open(t, t.TempDir(), Options{}), make(chan map[string][]byte, 1)
	err := ca.locked(func() error {
		go func() {
			files, err := ReadFolder(ca.dir)
			if err != nil {
				t.Error(err)
			}
			read <- files
		}()
		select {
		case <-read:
			return errors.New("it read the folder during a change")
		case <-time.After(50 * time.Millisecond):
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files := <-read; len(files) != 4 || len(files[currentKey]) == 0 {
		t.Errorf("it read %d files", len(files))
	}
}

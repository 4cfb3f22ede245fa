package trust

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The error must state what to install, create or change.
func TestSigningReportsMissingParts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "id")
	if err := os.WriteFile(file, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, c := range []struct {
		key    Key
		record string
		why    []string
	}{
		{Key{File: file + "2"}, record, []string{"cannot sign with " + file + "2: the file does not exist", "run `pulley key create " + file + "2`"}},
		{Key{File: file}, record, []string{"cannot sign with " + file + ": ssh-keygen is not installed", "openssh-client on Debian"}},
		{Key{File: file, Program: "ssh-keygen-9"}, record, []string{"ssh-keygen-9 is not installed"}},
		{Key{File: file}, "two\nlines", []string{"cannot sign: the record cannot be read: it is not one line of text"}},
		{Key{File: file}, "", []string{"cannot sign: the record cannot be read: it is empty"}},
	} {
		_, err := c.key.Sign(t.Context(), Release, []byte(c.record))
		for _, why := range c.why {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%v, not %q", err, why)
			}
		}
	}
	if err := (Key{File: file}).Create(t.Context(), true); err == nil || !strings.Contains(err.Error(), "id exists\ngive another name") {
		t.Errorf("an existing file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new.pub"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Key{File: filepath.Join(dir, "new")}).Create(t.Context(), true); err == nil || !strings.Contains(err.Error(), "file "+dir+"/new.pub exists") {
		t.Errorf("an existing public key: %v", err)
	}
	if err := (Key{File: filepath.Join(dir, "newer")}).Create(t.Context(), true); err == nil || !strings.Contains(err.Error(), "cannot create key "+dir+"/newer: ssh-keygen is not installed") {
		t.Errorf("no ssh-keygen: %v", err)
	}
}

// A hanging ssh-keygen, for example without a touch, must not block a verb. The error names the possible cause.
func TestSigningEnds(t *testing.T) {
	dir := t.TempDir()
	key, waits := filepath.Join(dir, "id"), filepath.Join(dir, "waits")
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(waits, []byte("#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := Key{File: key, Program: waits, patience: 100 * time.Millisecond}
	began := time.Now()
	_, err := k.Sign(t.Context(), Release, []byte(record))
	if err == nil || !strings.Contains(err.Error(), "did not finish in time\nit may have waited for a passphrase") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A wrong path must be reported at once, with a fitting remedy. Otherwise the operator would change the mode of a
// README, or wait for a minute of packing.
func TestInvalidKeyFileIsReported(t *testing.T) {
	dir := t.TempDir()
	readme, key, fails := filepath.Join(dir, "README"), filepath.Join(dir, "id"), filepath.Join(dir, "fails")
	for file, text := range map[string]string{readme: "for us\n", key: "-----BEGIN OPENSSH PRIVATE KEY-----\n", fails: "#!/bin/sh\necho invalid format >&2\nexit 1\n"} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Key{File: key}).Check(); err != nil {
		t.Error(err)
	}
	sign := func(file string) error {
		_, err := Key{File: file, Program: fails}.Sign(t.Context(), Release, []byte(record))
		return err
	}
	for want, err := range map[string]error{
		"cannot sign with " + dir + ": it is not a file":             sign(dir),
		"cannot sign with " + dir + "/gone: the file does not exist": Key{File: dir + "/gone"}.Check(),
		"cannot sign with " + readme + ": invalid format":            sign(readme),
		"cannot sign with " + key + ": others may read it (mode":     sign(key),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// Fingerprint must find the key in every form of its file. Otherwise an existing signature would be added again, or a missing
// one never.
func TestFingerprintOfEachForm(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		gone []string // removed next to it
	}{
		{"private", []string{"-t", "ed25519", "-N", ""}, []string{".pub"}},
		{"locked", []string{"-t", "ed25519", "-N", "a secret"}, []string{".pub"}},
		{"old", []string{"-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "a secret"}, nil},
	} {
		file := filepath.Join(t.TempDir(), "id")
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", append(c.args, "-q", "-f", file)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		want := Key{File: file + ".pub"}.fingerprint()
		for _, suffix := range c.gone {
			if err := os.Remove(file + suffix); err != nil {
				t.Fatal(err)
			}
		}
		if got := (Key{File: file}).fingerprint(); got != want || !strings.HasPrefix(want, "SHA256:") {
			t.Errorf("%s: %q, not %q", c.name, got, want)
		}
	}
	if got := (Key{File: filepath.Join(t.TempDir(), "gone")}).fingerprint(); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

// No node accepts a release with too many signatures.
func TestAddedSignaturesCanStillBeRead(t *testing.T) {
	allowed := ""
	var all []byte
	var err error
	for number := range byte(maxSignatures) {
		key := softKey(t, number)
		allowed += "ann@* " + text(key.PublicKey()) + "\n"
		for range 3 { // one signature per key is enough
			if all, err = AddSignatures(all, sign(t, key, Release, record)); err != nil {
				t.Fatal(err)
			}
		}
		if got := SignedBy(all); len(got) != int(number)+1 {
			t.Fatalf("%d signatures by %d keys", len(got), number+1)
		}
	}
	first := softKey(t, 0)
	again, err := AddSignatures(all, sign(t, first, Release, record))
	if err != nil || len(again) != len(all) {
		t.Errorf("the first of eight again: %d bytes, not %d, %v", len(again), len(all), err)
	}
	if _, err := mustParse(t, allowed, "").Verify(Release, "dev", []byte(record), again, now); err != nil {
		t.Error(err)
	}
	more := sign(t, softKey(t, 99), Release, record)
	line := strings.Repeat("A", maxArmorLine) + "\n"
	large := []byte(beginSignature + "\n" + strings.Repeat(line, maxSignaturesBytes/len(line)-1) + endSignature + "\n")
	for _, c := range []struct {
		earlier, added []byte
		why            string
	}{
		{all, more, "it already has 8 signatures"},
		{append(bytes.Clone(all), more...), more, "there are more than 8"},
		{[]byte("nonsense"), more, "is cut off"},
		{nil, bytes.Repeat(more, maxSignatures+1), "there are more than 8"},
		{nil, append(bytes.Clone(large), large...), "the signature of the record cannot be read: it has"},
		{large, more, "the signature of the record cannot be read: it has"},
		{nil, []byte(beginSignature + "\nAAAA\n" + endSignature + "\n"), "cannot read the new signature"},
	} {
		if got, err := AddSignatures(c.earlier, c.added); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%d bytes pass: %v, want %s", len(got), err, c.why)
		}
	}
}

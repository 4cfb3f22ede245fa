package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/access/fleetca"
	"pulley/internal/cli"
	"pulley/internal/desired/control"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
)

// A lost machine of serve must not mean a new fleet: CA, users and rights come back with etcd's data, and a backup that
// anybody else could read would give away the fleet.
func TestBackupOfASecuredFleetIsRestored(t *testing.T) {
	t.Parallel()
	dir, file := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "fleet.backup")
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		env := cli.Env{Stdin: &bytes.Buffer{}, Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Now: time.Now}
		return Main(t.Context(), env, args), out.String()
	}
	var ahead atomic.Int64
	out, stop := serveAt(t, dir, &ahead)
	works(t, dir, out)
	retire := retirement(t, dir, out, true)
	admin := fleetca.AdminFile(dir)
	if err := os.Rename(admin, admin+".away"); err != nil { // its operator keeps it elsewhere
		t.Fatal(err)
	}
	endpoint := out.find(t, `PULLEY_ENDPOINTS=(\S+)`)
	if code, text := run("backup", file, "--data-dir", dir, "--endpoints", endpoint); code != cli.ExitDone {
		t.Errorf("without the administrator's identity: exit code %d: %s", code, text)
	}
	if err := os.Rename(admin+".away", admin); err != nil {
		t.Fatal(err)
	}
	if code, text := run("backup", file, "--data-dir", dir, "--endpoints", endpoint); code != cli.ExitDone {
		t.Fatalf("exit code %d: %s", code, text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v, %v", info, err)
	}
	stop(true)
	before := identities(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if code, text := run("restore", file, "--data-dir", dir); code != cli.ExitDone || strings.Contains(text, "error") {
		t.Fatalf("exit code %d: %s", code, text)
	}
	for name, text := range identities(t, dir) {
		if before[name] != text {
			t.Errorf("%s is not that of the backup", name)
		}
	}
	out, stop = serveAt(t, dir, &ahead)
	works(t, dir, out)
	if got := retirement(t, dir, out, false); got != retire {
		t.Errorf("the confirmation of a retirement was %q and is %q", retire, got)
	}
	if strings.Contains(out.String(), "was made") {
		t.Error("the restored folder has another administrator")
	}
	stop(true)

	// A restore that is killed before its end leaves a folder that no serve starts: its gates would be open.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	half, archive, restored := filepath.Join(t.TempDir(), "data"), &stuck{left: b[:len(b)-tarEnd], read: make(chan struct{}), end: make(chan struct{})}, make(chan int, 1)
	go func() {
		env := cli.Env{Stdin: archive, Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }, Now: time.Now}
		restored <- Main(t.Context(), env, []string{"restore", "-", "--data-dir", half})
	}()
	<-archive.read
	out, stop = serveAt(t, half, &ahead)
	if code := stop(false); code != cli.ExitFailed || !strings.Contains(out.String(), "`pulley restore` has not finished there") {
		t.Errorf("during a restore, serve ended with %d:\n%s", code, out)
	}
	close(archive.end)
	if code := <-restored; code != cli.ExitDone {
		t.Errorf("the restore ended with %d", code)
	}

	// A damaged archive leaves an empty folder, and no file outside it.
	for name, damaged := range map[string][]byte{
		"cut":     b[:10000],
		"flipped": bytes.Replace(b, b[4096:4128], bytes.Repeat([]byte{0xa5}, 32), 1),
		"outside": bytes.Replace(b, []byte("pki/admin.pem\x00"), []byte("../x/adm.pem\x00\x00"), 1),
	} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		into := filepath.Join(t.TempDir(), "data")
		if code, text := run("restore", file, "--data-dir", into); code != cli.ExitFailed {
			t.Errorf("%s: exit code %d: %s", name, code, text)
		}
		if left, err := os.ReadDir(into); err != nil || len(left) > 0 {
			t.Errorf("%s leaves %v, %v", name, left, err)
		}
	}
}

// tarEnd is the length of the blocks of zeros that end a tar archive.
const tarEnd = 1024

// stuck is an archive that ends only when end is closed.
type stuck struct {
	left      []byte
	read, end chan struct{} // read is closed when all is read
}

func (s *stuck) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		close(s.read)
		<-s.end
		return 0, io.EOF
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// retirement returns the id of the confirmed request to retire controller1. With begin, an administrator requests it.
func retirement(t *testing.T, dir string, out *said, begin bool) string {
	t.Helper()
	st, ctx, dev := administrator(t, dir, out), t.Context(), model.Ref{Environment: "dev"}
	defer st.Close()
	if begin {
		a, err := records.In(st).BeginApply(ctx, dev, "ann")
		if err != nil {
			t.Fatal(err)
		}
		r := model.Request{ID: "00000000000000aa", Do: model.RequestRetire}
		err = errors.Join(fleet.In(st).Register(ctx, "dev", model.Host{Node: "controller1", Role: "controller"}), a.Ask(ctx, "controller1", r), a.Close())
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := control.In(st).Confirmation(ctx, model.Identity{Environment: "dev", Node: "controller1"})
	if err != nil || c == nil {
		t.Fatalf("the confirmation is %+v, %v", c, err)
	}
	return c.ID
}

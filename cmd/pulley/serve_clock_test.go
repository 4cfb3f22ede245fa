package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
)

const year = 365 * 24 * time.Hour

// set is what `date -s` does to a reading of the clock: its wall time is ahead by whole seconds, and its monotonic reading
// stays. time.Time.Add shifts both.
func set(t time.Time, ahead time.Duration) time.Time {
	const secondsFrom = 30 // bits of the nanoseconds below, in the first word of a time.Time with a monotonic reading
	*(*uint64)(unsafe.Pointer(&t)) += uint64(ahead/time.Second) << secondsFrom
	return t
}

// serveAt runs `pulley serve --auth` on a data folder with a clock that is ahead by a time. stop ends it and returns
// its exit code; it waits if serve ends by itself.
func serveAt(t *testing.T, dir string, ahead *atomic.Int64, args ...string) (out *said, stop func(signal bool) int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = &said{}
	env := cli.Env{
		Stdin: &bytes.Buffer{}, Stdout: out, Stderr: out, Getenv: func(string) string { return "" },
		Now: func() time.Time { return set(time.Now(), time.Duration(ahead.Load())) },
	}
	args = append([]string{"serve", "--auth", "--data-dir", dir, "--listen", "127.0.0.1:0", "--listen-https", "127.0.0.1:0"}, args...)
	done := make(chan int, 1)
	go func() { done <- Main(ctx, env, args) }()
	t.Cleanup(cancel)
	return out, func(signal bool) int {
		t.Helper()
		if signal {
			cancel()
		}
		select {
		case code := <-done:
			return code
		case <-time.After(time.Minute):
			t.Fatalf("serve does not end:\n%s", out)
			return 0
		}
	}
}

// identities reads the files that a wrong clock must not change.
func identities(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{"admin.pem", "serve.pem", "server.pem"} {
		b, err := os.ReadFile(filepath.Join(dir, "pki", name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(b)
	}
	return all
}

// works checks that the first administrator can use a running serve.
func works(t *testing.T, dir string, out *said) {
	t.Helper()
	st := administrator(t, dir, out)
	defer st.Close()
	if _, err := access.In(st).Users(t.Context()); err != nil {
		t.Errorf("the administrator cannot use etcd: %v", err)
	}
}

// administrator connects as the first administrator. The caller closes the store.
func administrator(t *testing.T, dir string, out *said) *etcd.DB {
	t.Helper()
	endpoint, admin := out.find(t, `PULLEY_ENDPOINTS=(\S+)`), filepath.Join(dir, "pki", "admin.pem")
	st, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, CACert: filepath.Join(dir, "pki", "bundle.pem"), Cert: admin, Key: admin, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// One start with a clock a year ahead cut off the whole fleet for a year: serve replaced its own certificates and the
// administrator's with ones that are not valid yet.
func TestServeRefusesAWrongClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ahead atomic.Int64
	out, stop := serveAt(t, dir, &ahead)
	works(t, dir, out)
	if code := stop(true); code != cli.ExitDone {
		t.Fatalf("serve ended with %d:\n%s", code, out)
	}
	before := identities(t, dir)
	for shift, want := range map[time.Duration]string{year: "the clock is 36", -year: "the clock is behind"} {
		ahead.Store(int64(shift))
		out, stop = serveAt(t, dir, &ahead)
		if code := stop(false); code != cli.ExitFailed || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "--today ") {
			t.Errorf("with a clock %s ahead, serve ended with %d:\n%s", shift, code, out)
		}
	}
	for name, text := range identities(t, dir) {
		if before[name] != text {
			t.Errorf("a wrong clock changed %s", name)
		}
	}
	ahead.Store(0)
	out, stop = serveAt(t, dir, &ahead)
	works(t, dir, out)

	// The clock jumps while serve runs.
	if now := time.Now(); set(now, year).Sub(now) != 0 || set(now, year).Round(0).Sub(now.Round(0)) != year {
		t.Fatal("the test's clock does not jump like a real one")
	}
	ahead.Store(int64(year))
	if code := stop(false); code != cli.ExitFailed || !strings.Contains(out.String(), "cannot continue serve: this machine's clock shows ") {
		t.Errorf("after a jump of the clock, serve ended with %d:\n%s", code, out)
	}
	for name, text := range identities(t, dir) {
		if before[name] != text {
			t.Errorf("a jump of the clock changed %s", name)
		}
	}
}

// An operator who confirmed a wrong date, or a first start with a wrong clock, must not be without a way back.
func TestServeHealsAfterAWrongDateWasConfirmed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ahead atomic.Int64
	out, stop := serveAt(t, dir, &ahead)
	works(t, dir, out)
	stop(true)
	before := identities(t, dir)

	ahead.Store(int64(year))
	out, stop = serveAt(t, dir, &ahead, "--today", time.Now().Add(year).UTC().Format(time.DateOnly))
	out.find(t, `(joins) `)
	stop(true)
	for name, text := range identities(t, dir) {
		if before[name] == text {
			t.Errorf("the confirmed date did not renew %s: this test tests nothing", name)
		}
	}
	ahead.Store(0)
	out, stop = serveAt(t, dir, &ahead)
	if code := stop(false); code != cli.ExitFailed || !strings.Contains(out.String(), "the clock is behind") {
		t.Fatalf("serve ended with %d:\n%s", code, out)
	}
	out, stop = serveAt(t, dir, &ahead, "--today", time.Now().UTC().Format(time.DateOnly))
	works(t, dir, out)
	if code := stop(true); code != cli.ExitDone {
		t.Fatalf("serve ended with %d:\n%s", code, out)
	}
	out, stop = serveAt(t, dir, &ahead) // the confirmation was needed once
	works(t, dir, out)
	stop(true)
}

// A fleet whose administrator's identity is lost, or in the wrong hands, must not need a new fleet.
func TestTheAdministratorIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ahead atomic.Int64
	out, stop := serveAt(t, dir, &ahead)
	works(t, dir, out)
	admin, copied := filepath.Join(dir, "pki", "admin.pem"), filepath.Join(dir, "copy.pem")
	if err := os.Rename(admin, copied); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	env := cli.Env{Stdin: &bytes.Buffer{}, Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }, Now: time.Now}
	endpoint := out.find(t, `PULLEY_ENDPOINTS=(\S+)`)
	if code := Main(t.Context(), env, []string{"ca", "admin", "--yes", "--data-dir", dir, "--endpoints", endpoint}); code != cli.ExitDone || !strings.Contains(stdout.String(), admin) {
		t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
	}
	works(t, dir, out)
	now, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, CACert: filepath.Join(dir, "pki", "bundle.pem"), Cert: admin, Key: admin, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if is, _, err := access.IdentitiesIn(now).Operator(t.Context(), "admin"); err != nil || !strings.HasPrefix(is.By, "pulley/serve/") {
		t.Errorf("it was made by %+v, and etcd checked the identity of serve: %v", is, err)
	}
	st, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, CACert: filepath.Join(dir, "pki", "bundle.pem"), Cert: copied, Key: copied, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := access.In(st).Users(t.Context()); err == nil {
		t.Error("a copy of the former identity still works")
	}
	stop(true)
	out, stop = serveAt(t, dir, &ahead)
	works(t, dir, out)
	stop(true)
}

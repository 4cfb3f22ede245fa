package member

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Plain text on an address that other machines reach would let anyone run code as root on every node.
func TestPlainTextOnlyOnLoopback(t *testing.T) {
	t.Parallel()
	for listen, ok := range map[string]bool{
		"127.0.0.1:2379": true, "127.8.8.8:0": true, "[::1]:2379": true, "localhost:1": true,
		"0.0.0.0:2379": false, ":2379": false, "[::]:2379": false, "192.0.2.7:2379": false, "etcd.example:2379": false, "127.0.0.1": false, "": false,
	} {
		if err := CheckListen(listen, false); (err == nil) != ok {
			t.Errorf("%q: %v", listen, err)
		}
		if err := CheckListen(listen, true); (err == nil) != (ok || strings.Contains(listen, ":")) {
			t.Errorf("%q with TLS: %v", listen, err)
		}
	}
	if _, err := StartEtcd(t.Context(), EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", Cert: "c", Key: "k"}); err == nil || !strings.Contains(err.Error(), "--cacert") {
		t.Errorf("TLS without a CA lets every client in: %v", err)
	}
}

// A second close of a member (a signal while it ends) must not panic, and must free its address and its data.
func TestMemberClosesTwiceAndRestarts(t *testing.T) {
	t.Parallel()
	c := EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler}
	for range 2 {
		e, err := StartEtcd(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		c.Listen = strings.TrimPrefix(e.Endpoint(), "http://")
		e.Close()
		e.Close()
	}
}

// A few publications of a large repository must not fill the memory of `pulley serve`, nor keep it from starting: the raft log
// that a member keeps in memory, and reads again at its start, has few entries.
func TestMemberKeepsFewEntriesOfItsLog(t *testing.T) {
	t.Parallel()
	c := EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler}
	e, err := StartEtcd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const puts = 3 * logEntries
	for range puts {
		if _, err := client.Put(t.Context(), "/pulley/v1/content/x", "x"); err != nil {
			t.Fatal(err)
		}
	}
	var newest int64
	for end := time.Now().Add(30 * time.Second); newest < puts-2*logEntries; time.Sleep(20 * time.Millisecond) {
		snapshots, err := filepath.Glob(filepath.Join(c.Dir, dataName, "member", "snap", "*.snap"))
		if err != nil || time.Now().After(end) {
			t.Fatalf("after %d writes, the newest snapshot of the log is at entry %d: %v", puts, newest, err)
		}
		for _, file := range snapshots { // term-index.snap, in hexadecimal
			_, index, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".snap"), "-")
			if at, err := strconv.ParseInt(index, 16, 64); err == nil {
				newest = max(newest, at)
			}
		}
	}
}

// A second server on one data folder must report that instead of waiting forever. A signal must stop a member that
// cannot start.
func TestFolderInUseIsReported(t *testing.T) {
	t.Parallel()
	c := EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler}
	e, err := StartEtcd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := StartEtcd(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another pulley serve uses "+c.Dir) {
		t.Errorf("a second server on the same folder: %v", err)
	}
	e.Close()
	// A foreign program ignores our lock, and has the database open.
	db, err := os.Open(filepath.Join(c.Dir, "etcd", "member", "snap", "db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(db.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := StartEtcd(ctx, c); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a database that is open elsewhere: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// The waiting member gets the folder and frees it, and then it can be served again.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		e, err := StartEtcd(t.Context(), c)
		if err == nil {
			e.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Etcd divides by the retention and accepts any quota: a typo must not cause a panic or a read-only fleet.
func TestLimitsOfTheMember(t *testing.T) {
	t.Parallel()
	good := EtcdConfig{QuotaBytes: DefaultQuota, Retention: DefaultRetention}
	if err := good.Limits(); err != nil {
		t.Error(err)
	}
	for _, quota := range []int64{-1, 0, 1, 16<<20 - 1, 8<<30 + 1} {
		if err := (EtcdConfig{QuotaBytes: quota, Retention: DefaultRetention}).Limits(); err == nil {
			t.Errorf("a quota of %d was taken", quota)
		}
	}
	for _, retention := range []time.Duration{-5 * time.Minute, 0, 1, time.Second, 31 * time.Minute} {
		if err := (EtcdConfig{QuotaBytes: DefaultQuota, Retention: retention}).Limits(); err == nil {
			t.Errorf("a retention of %s was taken", retention)
		}
	}
}

// etcd itself waits for ever for a named pipe, and no signal ends it.
func TestMemberRefusesPipeAsCertificate(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	c := EtcdConfig{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler,
		Cert: pipe, Key: pipe, CACert: pipe,
	}
	done := make(chan error, 1)
	go func() { _, err := StartEtcd(t.Context(), c); done <- err }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), pipe+": it is a named pipe") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}

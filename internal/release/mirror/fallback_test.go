package mirror

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"pulley/internal/release/content"
)

// A dead mirror delays a node once, not for each pack, and does not stop its update.
func TestFallbackSkipsDeadMirror(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	etcd := newStored(hello)
	etcd.deltas["1.0.0/1"] = []byte("delta")
	src := Fallback(client(t, nil, 200*time.Millisecond, "https://"+listener.Addr().String()), etcd)
	began := time.Now()
	for range 100 {
		if b, err := src.Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a hundred objects took %s", took)
	}
	if deltas, err := src.Deltas(t.Context(), "1.0.0", 1, 1); err != nil || string(deltas[0]) != "delta" {
		t.Errorf("%q, %v", deltas, err)
	}
	src.(*fallback).breaker.last = time.Now().Add(-leftAlone)
	if src.(*fallback).breaker.open() {
		t.Error("a mirror that came back is never asked again")
	}
}

// After wrong bytes from a mirror, a node reads from etcd. After a failure of etcd, it reads from the mirror.
func TestFallbackBothWays(t *testing.T) {
	hash := content.HashOf([]byte(hello))
	good := newStored(hello)
	lying := newStored()
	lying.objects[hash] = []byte("hellO")
	down := newStored()
	down.fail(errors.New("etcd is unreachable"))
	for name, first := range map[string]content.Source{"lying": lying, "empty": newStored(), "down": down} {
		if b, err := Fallback(first, good).Object(t.Context(), hash); err != nil || string(b) != hello {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	good.mu.Lock()
	asked := len(good.asked)
	good.mu.Unlock()
	if asked != 1 {
		t.Errorf("etcd was asked for %d things", asked)
	}
	_, err := Fallback(newStored(), down).Object(t.Context(), hash)
	if err == nil || !strings.Contains(err.Error(), "etcd is unreachable") || !errors.Is(err, errAbsent) {
		t.Errorf("one of the two reasons is lost: %v", err)
	}
}

// A skipped source is used if no other source has an answer. Otherwise its outage would last longer because of the
// other's.
func TestFallbackRetriesSkippedMirrors(t *testing.T) {
	hash := content.HashOf([]byte(hello))
	first, second := newStored(hello), newStored()
	first.fail(errors.New("etcd is unreachable"))
	src := Fallback(first, second)
	for range maxFailures {
		if _, err := src.Object(t.Context(), hash); err == nil {
			t.Fatal("neither had it")
		}
	}
	if !src.(*fallback).breaker.open() {
		t.Fatal("it is not left alone")
	}
	first.fail(nil)
	if b, err := src.Object(t.Context(), hash); err != nil || string(b) != hello {
		t.Errorf("%q, %v", b, err)
	}
	if src.(*fallback).breaker.open() {
		t.Error("a mirror that answers is skipped")
	}
}

// A missing value must not make a mirror skipped: it may have the next pack.
func TestFallbackDoesNotCountAbsence(t *testing.T) {
	s, config := serve(t, Handler(newStored(), errAbsent))
	etcd := newStored(hello)
	src := Fallback(client(t, config, soon, s.URL), etcd)
	for range 5 {
		if b, err := src.Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if n := src.(*fallback).breaker.failures; n != 0 {
		t.Errorf("%d failures", n)
	}
}

// A cancelled download starts no other request and counts no failure.
func TestFallbackEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	second := newStored(hello)
	first := newStored()
	first.fail(context.Canceled)
	src := Fallback(first, second)
	if _, err := src.Object(ctx, content.HashOf([]byte(hello))); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if second.count() != 0 || src.(*fallback).breaker.failures != 0 {
		t.Error("the second was asked, or the first is blamed")
	}
}

// A wrong delta of a mirror must not block a release: the second request reads it from etcd.
func TestFallbackReplacesDamagedDelta(t *testing.T) {
	lying, etcd := newStored(), newStored()
	for seq, name := range []string{"1.0.0/0", "1.0.0/1", "1.0.0/2"} {
		lying.deltas[name] = []byte("wrong")
		etcd.deltas[name] = []byte{byte('0' + seq)}
	}
	src := Fallback(lying, etcd)
	for _, c := range []struct {
		from, to int64
		want     string
	}{{1, 1, "wrong"}, {1, 2, "1"}, {2, 2, "2"}, {0, 0, "wrong"}, {0, 0, "0"}} {
		deltas, err := src.Deltas(t.Context(), "1.0.0", c.from, c.to)
		if err != nil || string(deltas[0]) != c.want {
			t.Errorf("%d to %d: %q, %v", c.from, c.to, deltas, err)
		}
	}
	etcd.fail(errors.New("etcd is unreachable"))
	if deltas, err := src.Deltas(t.Context(), "1.0.0", 1, 1); err != nil || string(deltas[0]) != "wrong" {
		t.Errorf("a second time, without the second: %q, %v", deltas, err)
	}
	for i := range int64(3 * mostGiven) {
		_, _ = src.Deltas(t.Context(), "2.0.0", i, i)
	}
	if n := len(src.(*fallback).given); n > mostGiven+1 {
		t.Errorf("%d deltas are remembered", n)
	}
}

package cluster_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/testbed/etcdtest"
)

// Every member answers a request for a snapshot, also one that lacks hours of writes. The two here stand for a member
// that is behind and one that is not; the client uses both in turn.
func TestSnapshotIsOfTheNewestMember(t *testing.T) {
	t.Parallel()
	behind, newest := etcdtest.Start(t), etcdtest.Start(t)
	mark := []byte("only the newest member has this value")
	for n := range 3 {
		if _, err := newest.Client().Put(t.Context(), "/mark", string(mark[:len(mark)-2+n])); err != nil {
			t.Fatal(err)
		}
	}
	st, err := etcd.Open(etcd.Config{Endpoints: []string{behind.Endpoint, newest.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	fits := func(int64) error { return nil }
	for range 4 {
		var snapshot bytes.Buffer
		old, err := cluster.In(st).Snapshot(t.Context(), fits, &snapshot)
		if err != nil || old || !bytes.Contains(snapshot.Bytes(), mark) {
			t.Fatalf("a snapshot of %d bytes has the value: %v (old: %v, %v)", snapshot.Len(), bytes.Contains(snapshot.Bytes(), mark), old, err)
		}
	}
	full := errors.New("the disk is full")
	fits = func(bytes int64) error {
		if bytes <= 0 {
			t.Errorf("the database has %d bytes", bytes)
		}
		return full
	}
	var snapshot bytes.Buffer
	if _, err := cluster.In(st).Snapshot(t.Context(), fits, &snapshot); !errors.Is(err, full) || snapshot.Len() > 0 {
		t.Errorf("a snapshot that does not fit: %d bytes, %v", snapshot.Len(), err)
	}
}

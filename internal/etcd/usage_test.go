package etcd_test

import (
	"fmt"
	"testing"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/testbed/etcdtest"
)

// A publish that looks at another member than the fullest fills that one, and then the whole cluster refuses writes.
func TestUsageIsThatOfTheFullestMember(t *testing.T) {
	t.Parallel()
	empty, full := etcdtest.Start(t), etcdtest.Start(t) // two members, for this purpose
	for n := range 4 {
		if _, err := full.Client().Put(t.Context(), fmt.Sprint("blob", n), string(make([]byte, 1<<20))); err != nil {
			t.Fatal(err)
		}
	}
	for _, endpoints := range [][]string{{empty.Endpoint, full.Endpoint}, {full.Endpoint, empty.Endpoint}, {"http://127.0.0.1:1", empty.Endpoint, full.Endpoint}} {
		db, err := etcd.Open(etcd.Config{Endpoints: endpoints, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		u := db.Usage(t.Context())
		for end := time.Now().Add(20 * time.Second); u.Stored < 4<<20 && time.Now().Before(end); u = db.Usage(t.Context()) { // etcd commits in batches
		}
		if u.Stored < 4<<20 || u.Quota == 0 {
			t.Errorf("%v: %+v", endpoints, u)
		}
	}
}

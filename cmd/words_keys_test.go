package cmd_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	etcdclient "go.etcd.io/etcd/client/v3"
)

// dump FILE [WITHOUT] writes what etcd has into a file, key by key with its revision; not the keys that contain WITHOUT.
func dump(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 1 || len(args) > 2, "dump FILE [WITHOUT]")
	resp, err := serverOf(ts).Client().Get(context.Background(), "", etcdclient.WithPrefix())
	ts.Check(err)
	var b strings.Builder
	for _, kv := range resp.Kvs {
		if len(args) == 1 || !strings.Contains(string(kv.Key), args[1]) {
			fmt.Fprintf(&b, "%s %d %q\n", kv.Key, kv.ModRevision, kv.Value)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o600))
}

package cmd_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// dump FILE [WITHOUT] writes what etcd has into a file, key by key; not the keys that contain WITHOUT.
func dump(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 1 || len(args) > 2, "dump FILE [WITHOUT]")
	var b strings.Builder
	for _, key := range serverOf(ts).Keys() {
		if len(args) == 2 && strings.Contains(key, args[1]) {
			continue
		}
		resp, err := serverOf(ts).Client().Get(context.Background(), key)
		ts.Check(err)
		for _, kv := range resp.Kvs {
			fmt.Fprintf(&b, "%s %q\n", key, kv.Value)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o600))
}

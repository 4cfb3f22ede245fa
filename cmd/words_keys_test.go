package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// dump FILE [WITHOUT] writes the content of etcd to a file, key by key, except keys that contain WITHOUT.
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

// aged DURATION makes all machine records in the inventory older: a plan waits for young machines.
func aged(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "aged DURATION")
	by, err := time.ParseDuration(args[0])
	ts.Check(err)
	for _, key := range serverOf(ts).Keys() {
		if !strings.Contains(key, "/machines/") || !strings.Contains(key, "/environments/") {
			continue
		}
		resp, err := serverOf(ts).Client().Get(context.Background(), key)
		ts.Check(err)
		for _, kv := range resp.Kvs {
			var record map[string]any
			ts.Check(json.Unmarshal(kv.Value, &record))
			at, err := time.Parse(time.RFC3339, record["at"].(string))
			ts.Check(err)
			record["at"] = at.Add(-by).Format(time.RFC3339)
			b, err := json.Marshal(record)
			ts.Check(err)
			_, err = serverOf(ts).Client().Put(context.Background(), key, string(b))
			ts.Check(err)
		}
	}
}

//go:build e2e

package cmd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/agent"
	"pulley/internal/model"
)

// TestRetireCrashes proves that the next tick completes a retirement after the node died at any point: the hooks have
// run, the node has answered, and it runs nothing afterwards.
func TestRetireCrashes(t *testing.T) {
	t.Parallel()
	f := newCrashFleet(t)
	var all []crash
	for _, step := range agent.Steps(model.Retire) {
		for _, place := range []string{"before:" + step, "after:" + step} {
			all = append(all, crash{place, "good", fmt.Sprintf("good%d", len(all)+1)})
		}
	}
	f.write("crash.yaml", fmt.Sprintf("roles:\n  good: {cardinality: %d}\n", len(all)))
	f.must("pulley", "env", "apply", "crash.yaml")
	f.must("pulley", "init", "R")
	f.write("R/retire.d/10-drain", "#!/bin/sh\necho drained >>"+f.dir+"/machine/$PULLEY_NODE.drained\n")
	f.write("R/manifests/site.pp", "node default { }\n# fake: file "+f.dir+"/machine/%{certname} one\n")
	err := os.Chmod(filepath.Join(f.dir, "R/retire.d/10-drain"), 0o755)
	if err == nil {
		err = os.RemoveAll(filepath.Join(f.dir, "R/validate.d"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.must("pulley", "publish", "R", "--version", "1.0.0", "--no-puppet")
	f.must("pulley", "promote", "1.0.0", "--foreign")
	for _, c := range all {
		t.Run(c.place, func(t *testing.T) {
			f.join(c.node)
			entry := fmt.Sprintf(`{"v":1,"node":%q,"role":"good","request":{"id":"00112233aabbccdd","do":"retire"}}`, c.node)
			for key, value := range map[string]string{"environments/crash/hosts/nodes/" + c.node: entry, "retirements/crash/" + c.node: `{"v":1,"id":"00112233aabbccdd"}`} {
				if _, err := f.etcd.Client().Put(t.Context(), "/pulley/v1/"+key, value); err != nil {
					t.Fatal(err)
				}
			}
			f.die(t, c)
			f.tick(t, c.node)
			drained := func() int {
				b, _ := os.ReadFile(filepath.Join(f.dir, "machine", c.node+".drained"))
				return strings.Count(string(b), "drained\n")
			}
			if n := drained(); n < 1 || n > 2 {
				t.Errorf("its hook ran %d times", n)
			}
			before := drained()
			out, err := f.command(nil, "pulley-agent", "run", "--force", "--root", c.node)
			if err != nil || !strings.Contains(out, "the node is retired and runs nothing") || drained() != before {
				t.Errorf("the tick after that: %v\n%s", err, out)
			}
			var x struct {
				Status model.Status `json:"status"`
			}
			if err := json.Unmarshal([]byte(f.must("pulley", "explain", c.node, "-o", "json")), &x); err != nil {
				t.Fatal(err)
			}
			if a := x.Status.Answer; a == nil || *a != (model.Answer{ID: "00112233aabbccdd"}) || x.Status.Phase != model.Idle {
				t.Errorf("it answers %+v and is %s", a, x.Status.Phase)
			}
		})
	}
}

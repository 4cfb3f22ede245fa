//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// lamp is the example of the deployment orchestrators before: two applications, each a database with three web servers.
const lamp = `roles:
  dev: {cardinality: 4}
applications:
  Lamp:
    app1:
      Lamp::Mysql[app1]: {node: dev1, produces: ["Sql[app1]"]}
      Lamp::Webapp[app1-1]: {node: dev2, consumes: ["Sql[app1]"]}
      Lamp::Webapp[app1-2]: {node: dev3, consumes: ["Sql[app1]"]}
      Lamp::Webapp[app1-3]: {node: dev4, consumes: ["Sql[app1]"]}
    app2:
      Lamp::Mysql[app2]: {node: dev1, produces: ["Sql[app2]"]}
      Lamp::Webapp[app2-1]: {node: dev2, consumes: ["Sql[app2]"]}
      Lamp::Webapp[app2-2]: {node: dev3, consumes: ["Sql[app2]"]}
      Lamp::Webapp[app2-3]: {node: dev4, consumes: ["Sql[app2]"]}
`

// lampPlan is the plan of the job. The lines after it have the times of the runs.
const lampPlan = `job in dev: 2 applications on 4 managed nodes, in 2 groups
  Lamp[app1]
  Lamp[app2]

group 1
  dev1
    Lamp[app1] -> Lamp::Mysql[app1]
    Lamp[app2] -> Lamp::Mysql[app2]

group 2
  dev2
    Lamp[app1] -> Lamp::Webapp[app1-1]
    Lamp[app2] -> Lamp::Webapp[app2-1]
  dev3
    Lamp[app1] -> Lamp::Webapp[app1-2]
    Lamp[app2] -> Lamp::Webapp[app2-2]
  dev4
    Lamp[app1] -> Lamp::Webapp[app1-3]
    Lamp[app2] -> Lamp::Webapp[app2-3]

it takes about `

// A web server that runs before its database, or after a database that failed, breaks its site. That a retry leaves alone who ran is
// what job_run shows.
func TestJobRunsDatabasesBeforeWebServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.spec(lamp)
	f.publish("1.1.0", `node default {
  exec { '/bin/date +%s%N >/etc/began': provider => shell }
  -> exec { '/usr/bin/test ! -e /etc/broken': }
  -> exec { '/bin/date +%s%N >/etc/ended': provider => shell }
}
`)
	f.pulley("promote", "1.1.0")
	nodes := []string{"dev1", "dev2", "dev3", "dev4"}
	for _, node := range nodes {
		f.machine(node)
		contains(t, f.agent(node, 0, "run"), "changed on 1.1.0")
		f.daemon(node)
	}

	first := f.lastRuns(nodes)
	contains(t, f.pulley("job", "plan"), lampPlan)

	// The database fails: no web server runs, and all nodes are free again.
	f.write("dev1", "/etc/broken", "")
	out, err := f.try("job", "run", "--yes", "-m", "new certificates")
	if err == nil {
		t.Fatalf("the job succeeded:\n%s", out)
	}
	contains(t, out, lampPlan)
	contains(t, out, "failed; 0 of 4 nodes done, 1 failed")
	shown := f.pulley("job", "show")
	contains(t, shown, "it stopped by itself: 1 node failed, and the policy allows 0")
	contains(t, shown, "dev1  failed")
	contains(t, shown, "Lamp[app1] -> Lamp::Mysql[app1], Lamp[app2] -> Lamp::Mysql[app2]")
	second := f.lastRuns(nodes)
	for _, node := range nodes {
		if ran := second[node] != first[node]; ran != (node == "dev1") {
			t.Errorf("%s ran in a job whose database failed: %v", node, ran)
		}
	}
	if out := f.pulley("explain", "dev2"); strings.Contains(out, "waits") {
		t.Errorf("a node waits after the end of the job:\n%s", out)
	}

	// The retry runs all that did not complete, the database first.
	f.in("dev1", 0, "rm", "/etc/broken")
	contains(t, f.pulley("job", "retry", "--yes"), "completed; 4 of 4 nodes done")
	third, ended := f.lastRuns(nodes), f.stamp("dev1", "ended")
	t.Logf("the database applied its catalog in %v", ended.Sub(f.stamp("dev1", "began")))
	for _, node := range nodes {
		if third[node] == second[node] {
			t.Errorf("%s did not run", node)
		}
		if after := f.stamp(node, "began").Sub(ended); node != "dev1" && after <= 0 {
			t.Errorf("%s began %v before the database ended", node, -after)
		} else if node != "dev1" {
			t.Logf("%s began %v after the end of the database", node, after)
		}
	}
	for _, node := range nodes {
		f.expect(node, "converged", "1.1.0", f.status(node).Outcome)
	}
}

// daemon runs a node's agent until the end of the test.
func (f *testFleet) daemon(node string) {
	f.t.Helper()
	cmd := f.machines[node].Command(f.t.Context(), agentPath, "daemon", "--schedule", "@every 1s")
	log, err := os.Create(filepath.Join(f.dir, node+".log"))
	if err != nil {
		f.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
	})
}

// stamp returns the time that a catalog wrote into a file of its node.
func (f *testFleet) stamp(node, name string) time.Time {
	f.t.Helper()
	ns, err := strconv.ParseInt(strings.TrimSpace(f.read(node, "/etc/"+name)), 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return time.Unix(0, ns)
}

// lastRuns returns the id of each node's last run.
func (f *testFleet) lastRuns(nodes []string) map[string]string {
	f.t.Helper()
	last := map[string]string{}
	for _, node := range nodes {
		var all []struct{ ID string }
		if err := json.Unmarshal([]byte(f.pulley("runs", node, "-o", "json")), &all); err != nil || len(all) == 0 {
			f.t.Fatalf("runs of %s: %v", node, err)
		}
		last[node] = all[0].ID
	}
	return last
}

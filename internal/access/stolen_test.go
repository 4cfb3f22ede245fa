package access_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A row of the table in docs/security.md: patterns of keys, and what etcd answers for keys of the node itself, of another node of its
// environment, and of another environment.
type stolenRow struct {
	patterns []string
	answers  [3]string
	used     bool
}

var (
	stolenLine = regexp.MustCompile("(?m)^\\| ((?:`[^`]+`(?:, )?)+) \\| (read|read, write|refused) \\| (read|read, write|refused) \\| (read|read, write|refused) \\|")
	quotedKey  = regexp.MustCompile("`([^`]+)`")
)

func stolenTable(t *testing.T) (rows []*stolenRow) {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range stolenLine.FindAllStringSubmatch(string(text), -1) {
		r := &stolenRow{answers: [3]string{m[2], m[3], m[4]}}
		for _, key := range quotedKey.FindAllStringSubmatch(m[1], -1) {
			r.patterns = append(r.patterns, key[1])
		}
		rows = append(rows, r)
	}
	return rows
}

func (r *stolenRow) has(pattern string) bool {
	return slices.ContainsFunc(r.patterns, func(p string) bool {
		prefix, all := strings.CutSuffix(p, "…")
		return pattern == p || all && strings.HasPrefix(pattern, prefix)
	})
}

// After the theft of a node, its owner asks what the thief can read, of each kind of key. The documentation must say what etcd does.
func TestStolenNodeReadsWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	server, _ := fleetWithUsers(t)
	thief, rows := server.ClientOf(fleettest.NodeA), stolenTable(t)
	for column, of := range [][2]string{{"dev", "controller1"}, {"dev", "compute1"}, {"production", "controller1"}} {
		for _, key := range etcdtest.TableOfKeys(t, of[0], of[1], "") {
			at := slices.IndexFunc(rows, func(r *stolenRow) bool { return r.has(key.Pattern) })
			if at < 0 {
				t.Fatalf("docs/security.md has no row for %s", key.Pattern)
			}
			rows[at].used = true
			read, write := do(t, thief, clientv3.OpGet(key.Key)), do(t, thief, clientv3.OpPut(key.Key, "as it was"))
			answer := "read, write"
			switch {
			case fleettest.Refusal(read) && fleettest.Refusal(write):
				answer = "refused"
			case read == nil && fleettest.Refusal(write):
				answer = "read"
			case read != nil || write != nil:
				t.Fatalf("%s: %v, %v", key.Key, read, write)
			}
			if want := rows[at].answers[column]; answer != want {
				t.Errorf("%s: etcd's answer is %q, docs/security.md says %q", key.Key, answer, want)
			}
		}
	}
	for _, r := range rows {
		if !r.used {
			t.Errorf("docs/security.md has a row for %q, and there are no such keys", r.patterns)
		}
	}
}

// A reviewer of the rights reads the table of roles. It must name each kind of key that a role writes, and no other.
func TestRolesWriteWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []struct{ key, name string }{
		{"hosts/head", "the head of the host list"}, {"status/", "status"}, {"runs/", "runs and answers to previews"}, {"facts/", "facts"}, {"hosts/exports/", "exported facts"},
		{"v1/environments/", "environments"}, {"v1/releases/", "releases"}, {"v1/withdrawn/", "withdrawals"}, {"v1/content/", "content"}, {"v1/deltas/", "deltas"}, {"v1/agents/", "agents"},
		{"v1/publishing/", "publishing"}, {"v1/pruning", "pruning"}, {"v1/targets", "the mark of targets"}, {"v1/tokens/nodes/", "tokens of nodes"}, {"v1/firstboots/", "first boots"},
	}
	s := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	for role, grants := range map[string][]access.Grant{
		"pulley/nodes/<environment>": access.In(s).NodesGrants("dev"), "pulley/node/<environment>/<node>": access.In(s).NodeGrants("dev", "web1"),
		"pulley/operator": access.In(s).OperatorGrants(access.RoleOperator),
	} {
		_, row, _ := strings.Cut(string(text), "| `"+role+"` |")
		row, _, _ = strings.Cut(row, "\n")
		cells := strings.Split(row, " | ")
		documented := strings.Split(strings.TrimSuffix(strings.TrimSpace(cells[len(cells)-1]), " |"), ", ")
		var granted []string
		for _, g := range grants {
			if g.May == clientv3.PermissionType(clientv3.PermRead) {
				continue
			}
			at := slices.IndexFunc(names, func(n struct{ key, name string }) bool { return strings.Contains(g.Key, n.key) })
			if at < 0 {
				t.Fatalf("%s writes %s, and the table has no word for it", role, g.Key)
			}
			granted = append(granted, names[at].name)
		}
		slices.Sort(granted)
		slices.Sort(documented)
		if !slices.Equal(granted, documented) {
			t.Errorf("%s writes %q, and docs/security.md says %q", role, granted, documented)
		}
	}
}

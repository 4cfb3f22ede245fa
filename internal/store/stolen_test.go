package store_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/store"
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
	thief, rows := server.ClientOf(nodeA), stolenTable(t)
	for column, of := range [][2]string{{"dev", "controller1"}, {"dev", "compute1"}, {"production", "controller1"}} {
		for _, key := range store.TableOfKeys(t, of[0], of[1]) {
			at := slices.IndexFunc(rows, func(r *stolenRow) bool { return r.has(key.Pattern) })
			if at < 0 {
				t.Fatalf("docs/security.md has no row for %s", key.Pattern)
			}
			rows[at].used = true
			read, write := do(t, thief, clientv3.OpGet(key.Key)), do(t, thief, clientv3.OpPut(key.Key, "as it was"))
			answer := "read, write"
			switch {
			case refusal(read) && refusal(write):
				answer = "refused"
			case read == nil && refusal(write):
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

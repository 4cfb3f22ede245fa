package doctor_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pulley/internal/doctor"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A value that no Pulley wrote, under any key, is named with its key and can be deleted. It hides nothing of other environments.
func TestForeignValuesOfAnyKindAreNamedAndDeleted(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw, ctx := fleettest.Open(t, server, ""), server.Client(), t.Context()
	// Their bytes are content: `pulley releases verify` checks them. The head of the host list and that of targets are read for their revisions.
	content := regexp.MustCompile(`/(data/generations|data/layers|content|deltas)/|/(hosts/head|targets)$`).MatchString
	for name, value := range map[string]string{"garbage": "locked by terraform", "newer": `{"v":99}`, "large": strings.Repeat("x", 50_000)} {
		var keys []string
		for _, row := range etcdtest.TableOfKeys(t, "dev", "web1", "") {
			keys = append(keys, row.Key)
		}
		if name == "garbage" {
			for _, key := range []string{
				"environments/dev/other", "environments/dev/holds/everybody", "status/dev/a%2fb", "environments/a b/spec", "environments/a%20b/spec", "environments/d%65v/spec",
				"environments//spec", "floods/dev", "retirements/DEV!/web1", "notices/a/b", "tokens/nodes/0000000g", "disk2",
			} {
				keys = append(keys, "/pulley/v1/"+key)
			}
		}
		for _, key := range keys {
			if _, err := raw.Put(ctx, key, value); err != nil {
				t.Fatal(err)
			}
		}
		all, unread, err := doctor.Unreadable(ctx, st)
		if err != nil || len(unread) > 0 {
			t.Fatal(err, unread)
		}
		named := map[string]bool{}
		for ref, some := range all {
			for _, u := range some {
				named[u.Key] = true
				if node := "web1"; strings.Contains(u.Key, "/dev/web1") && !strings.Contains(u.Key, "/firstboots/") && ref.Environment == "dev" && u.Node != node {
					t.Errorf("%s is of node %q", u.Key, u.Node)
				}
				if u.Problem == "" || len(u.Problem) > 300 {
					t.Errorf("%s: its problem is %.400q", u.Key, u.Problem)
				}
				if err := doctor.DeleteUnreadable(ctx, st, ref, u); err != nil {
					t.Error(err)
				}
			}
		}
		for _, key := range keys {
			if named[key] == content(key) {
				t.Errorf("%s with a %s value: named %t", key, name, named[key])
			}
		}
		if all, _, err := doctor.Unreadable(ctx, st); err != nil || fmt.Sprint(all) != "map[:[] dev:[]]" {
			t.Errorf("left: %v, %v", all, err)
		}
		if names, err := specs.In(st).List(ctx); err != nil || len(names) != 0 {
			t.Error(names, err)
		}
	}
}

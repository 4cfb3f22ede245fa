package store_test

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// A value that no Pulley wrote, under any key of an environment or a node, is named with its key and can be deleted. It hides nothing of other
// environments.
func TestForeignValuesOfAnyKindAreNamedAndDeleted(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw, ctx := open(t, server, ""), server.Client(), t.Context()
	// Their bytes are content: `pulley releases verify` checks them. The head of the host list is read for its revision.
	content := func(key string) bool {
		return strings.Contains(key, "/data/generations/") || strings.Contains(key, "/data/layers/") || strings.HasSuffix(key, "/hosts/head")
	}
	keys := map[string]string{}
	for env, value := range map[string]string{"garbage": "locked by terraform", "newer": `{"v":99}`, "large": strings.Repeat("x", 1_450_000)} {
		for _, row := range store.TableOfKeys(t, env, "web1") {
			if strings.Contains(row.Key, "/"+env+"/") {
				if _, err := raw.Put(ctx, row.Key, value); err != nil {
					t.Fatal(err)
				}
				keys[row.Key] = env
			}
		}
	}
	for _, key := range []string{"environments/garbage/other", "environments/garbage/holds/everybody", "status/garbage/a%2fb", "environments/a b/spec"} {
		key = "/pulley/v1/" + key
		keys[key] = "garbage"
		if _, err := raw.Put(ctx, key, `{"v":1}`); err != nil {
			t.Fatal(err)
		}
	}
	all, unread, err := st.Fleet.AllUnreadable(ctx)
	if err != nil || len(unread) > 0 {
		t.Fatal(err, unread)
	}
	named := map[string]bool{}
	for ref, some := range all {
		for _, u := range some {
			named[u.Key] = true
			if u.Problem == "" || len(u.Problem) > 300 {
				t.Errorf("%s: its problem is %.400q", u.Key, u.Problem)
			}
			if err := st.Fleet.DeleteUnreadable(ctx, ref, u); err != nil {
				t.Error(err)
			}
		}
	}
	for key, env := range keys {
		if named[key] == content(key) {
			t.Errorf("%s of %s: named %t", key, env, named[key])
		}
	}
	if all, _, err := st.Fleet.AllUnreadable(ctx); err != nil || fmt.Sprint(all) != "map[garbage:[] large:[] newer:[]]" {
		t.Errorf("left: %v, %v", all, err)
	}
	if names, err := st.Environments.List(ctx); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

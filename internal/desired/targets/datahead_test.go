package targets_test

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/desired/targets"
	"pulley/internal/testbed/fleettest"
)

// Somebody writes the head of the data, or a generation that follows it. Each would end all later changes of data: by a number that
// nobody can have, or by one that exists already.
func TestHeadOfTheDataIsRecovered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value string
		wrong      targets.DataHead
	}{
		"a high head":        {"head", `{"v":1,"newest":9223372036854775807}`, targets.DataHead{Head: 1<<63 - 1, Newest: 2}},
		"a low head":         {"head", `{"v":1,"newest":1}`, targets.DataHead{Head: 1, Newest: 2}},
		"a negative head":    {"head", `{"v":1,"newest":-9}`, targets.DataHead{Head: -1, Newest: 2}},
		"the next exists":    {"generations/000000000003", `?`, targets.DataHead{Head: 2, Newest: 3}},
		"another one exists": {"generations/000000000009", `?`, targets.DataHead{Head: 2, Newest: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := fleettest.Shared.Keyspace(t)
			st, ctx := fleettest.Open(t, server, ""), t.Context()
			for _, value := range []string{"1", "2"} {
				fleettest.Set(t, st, fleettest.Dev, "x", value, fleettest.Me)
			}
			if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/data/"+c.key, c.value); err != nil {
				t.Fatal(err)
			}
			h, err := targets.In(st).DataHead(ctx, fleettest.Dev, fleettest.Me.At)
			if err != nil || h.Head != c.wrong.Head || h.Newest != c.wrong.Newest {
				t.Fatalf("%+v, %v", h, err)
			}
			if h.Wrong() {
				d := fleettest.Desires(t, st, fleettest.Dev)
				data, err := targets.In(st).Data(ctx, fleettest.Dev, d)
				if err == nil {
					_, err = targets.In(st).ChangeData(ctx, fleettest.Dev, d, data, nil, fleettest.Me)
				}
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("and the newest is %d", h.Newest)) || !strings.Contains(err.Error(), "pulley recover -e dev") {
					t.Errorf("a change: %v", err)
				}
				if err := targets.In(st).RecoverHead(ctx, fleettest.Dev, h); err != nil {
					t.Fatal(err)
				}
			}
			if got := fleettest.Set(t, st, fleettest.Dev, "x", "3", fleettest.Me); got.After.Data != h.Newest+1 {
				t.Errorf("the next generation is %d, not %d", got.After.Data, h.Newest+1)
			}
		})
	}
}

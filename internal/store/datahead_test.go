package store_test

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/store"
)

// Somebody writes the head of the data, or a generation that follows it. Each would end all later changes of data: by a number that
// nobody can have, or by one that exists already.
func TestHeadOfTheDataIsRecovered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value string
		wrong      store.DataHead
	}{
		"a high head":        {"head", `{"v":1,"newest":9223372036854775807}`, store.DataHead{Head: 1<<63 - 1, Newest: 2}},
		"a low head":         {"head", `{"v":1,"newest":1}`, store.DataHead{Head: 1, Newest: 2}},
		"a negative head":    {"head", `{"v":1,"newest":-9}`, store.DataHead{Head: -1, Newest: 2}},
		"the next exists":    {"generations/000000000003", `?`, store.DataHead{Head: 2, Newest: 3}},
		"another one exists": {"generations/000000000009", `?`, store.DataHead{Head: 2, Newest: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := shared.Keyspace(t)
			st, ctx := open(t, server, ""), t.Context()
			for _, value := range []string{"1", "2"} {
				set(t, st, dev, "x", value, me)
			}
			if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/data/"+c.key, c.value); err != nil {
				t.Fatal(err)
			}
			h, err := st.Targets.DataHead(ctx, dev, me.At)
			if err != nil || h.Head != c.wrong.Head || h.Newest != c.wrong.Newest {
				t.Fatalf("%+v, %v", h, err)
			}
			if h.Wrong() {
				d := desires(t, st, dev)
				data, err := st.Targets.Data(ctx, dev, d)
				if err == nil {
					_, err = st.Targets.ChangeData(ctx, dev, d, data, nil, me)
				}
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("and the newest is %d", h.Newest)) || !strings.Contains(err.Error(), "pulley recover -e dev") {
					t.Errorf("a change: %v", err)
				}
				if err := st.Targets.RecoverHead(ctx, dev, h); err != nil {
					t.Fatal(err)
				}
			}
			if got := set(t, st, dev, "x", "3", me); got.After.Data != h.Newest+1 {
				t.Errorf("the next generation is %d, not %d", got.After.Data, h.Newest+1)
			}
		})
	}
}

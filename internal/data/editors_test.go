package data

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/testbed/etcdtest"
)

// editor is a person with one layer open.
type editor struct {
	name   string
	opened *LayerText
	keys   map[string]string // as they were opened
}

// Two editors of one layer, in any order of their steps, must not lose an update: what was acknowledged is in the layer until
// somebody who saw it replaces it. PULLEY_TEST_EDITORS is the number of edits.
func TestEditorsLoseNoUpdate(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 1}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	expected := map[string]string{} // the layer, by what was acknowledged
	refused, saved, interleavings := 0, 0, 100
	if n, err := strconv.Atoi(os.Getenv("PULLEY_TEST_EDITORS")); err == nil {
		interleavings = n
	}
	editors := []*editor{{name: "ann"}, {name: "ben"}}
	steps := 0
	for left := interleavings; left > 0; steps++ {
		e := editors[random.IntN(2)]
		author := promotion.Author{Author: targets.Author{By: e.name, At: time.Now()}}
		key, value := string(rune('a'+random.IntN(4))), fmt.Sprintf("%s%d", e.name, steps)
		switch {
		case random.IntN(3) == 0: // a single key, without opening the layer
			if _, err := EditLayer(ctx, s, dev, LayerEdit{Keys: []KeyEdit{{key, &value}}}, author); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, steps, err)
			}
			expected[key] = value
		case e.opened == nil:
			opened, _, err := OpenLayer(ctx, s, dev, LayerEdit{})
			if err != nil {
				t.Fatal(err)
			}
			e.opened, e.keys = &opened, maps.Clone(expected)
		default:
			left--
			e.keys[key] = value
			if random.IntN(4) == 0 {
				delete(e.keys, string(rune('a'+random.IntN(4))))
			}
			var text strings.Builder
			for k, v := range e.keys {
				fmt.Fprintf(&text, "%s: %s\n", k, v)
			}
			_, err := EditLayer(ctx, s, dev, LayerEdit{Whole: &LayerText{[]byte(text.String()), e.opened.Opened}}, author)
			var changed *ChangedLayer
			switch {
			case errors.As(err, &changed):
				refused++
			case err != nil:
				t.Fatalf("seed %d, step %d: %v", seed, steps, err)
			default:
				expected = e.keys
				saved++
			}
			e.opened, e.keys = nil, nil
		}
		if steps%10 == 0 || left == 0 {
			if got := layerNow(t, s, dev); !maps.Equal(got, expected) {
				t.Fatalf("seed %d, step %d: the layer is %v, and %v was acknowledged", seed, steps, got, expected)
			}
		}
	}
	t.Logf("seed %d: %d edits saved, %d refused, %d steps", seed, saved, refused, steps)
	if refused < interleavings/10 || saved < interleavings/10 {
		t.Errorf("seed %d: %d edits were refused and %d saved: the test proves little", seed, refused, saved)
	}
}

// Two editors at the same moment must both be in the layer, or one of them must know.
func TestEditorsAtOnceLoseNoUpdate(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 1}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	for round := range 20 {
		results := make(chan error, 2)
		for _, key := range []string{"a", "b"} {
			go func() {
				value := fmt.Sprint(round)
				_, err := EditLayer(ctx, s, dev, LayerEdit{Keys: []KeyEdit{{key, &value}}}, promotion.Author{Author: targets.Author{By: key, At: time.Now()}})
				results <- err
			}()
		}
		for range 2 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if got := layerNow(t, s, dev); got["a"] != fmt.Sprint(round) || got["b"] != fmt.Sprint(round) {
			t.Fatalf("round %d: %v", round, got)
		}
	}
}

func layerNow(t *testing.T, s *etcd.DB, ref model.Ref) map[string]string {
	t.Helper()
	opened, _, err := OpenLayer(t.Context(), s, ref, LayerEdit{})
	if err != nil {
		t.Fatal(err)
	}
	diffs, err := hieradata.Differences(nil, opened.Text)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range diffs {
		got[d.Key] = d.To.String()
	}
	return got
}

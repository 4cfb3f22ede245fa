package rollouts

import (
	"context"
	"strings"
	"testing"
	"time"

	"pulley/internal/data"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollouts/preview"
	"pulley/internal/testbed/etcdtest"
)

// A change of data during the preview of another one's rollout must be in the data that the rollout brings.
func TestRolloutOfDataUndoesNoOtherChange(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 1}\nrollout: {preview: {required: true}}\n")
	dev, ctx, value, looks := model.Ref{Environment: "dev"}, t.Context(), "yes", 0
	edit := func(key string, a Author) (DataChange, error) {
		return ChangeData(ctx, s, dev, a, func() (data.Edited, error) {
			return data.EditLayer(ctx, s, dev, data.LayerEdit{Keys: []data.KeyEdit{{Key: key, Value: &value}}}, a.Author)
		})
	}
	ann := Author{Author: promotion.Author{Author: targets.Author{By: "ann", At: time.Now()}, Rollout: true}}
	ann.Look = func(context.Context, *etcd.DB, model.Ref, preview.Query) (preview.Page, time.Time, error) {
		if looks++; looks > 1 {
			return preview.Page{}, time.Now(), nil
		}
		_, err := edit("ben", Author{Author: promotion.Author{Author: targets.Author{By: "ben", At: time.Now()}}})
		return preview.Page{}, time.Now(), err
	}
	done, err := edit("ann", ann)
	if err != nil || done.Rollout == nil {
		t.Fatalf("%+v: %v", done, err)
	}
	g, err := targets.In(s).Generation(ctx, "dev", done.Rollout.Target.Data)
	if err != nil {
		t.Fatal(err)
	}
	text, err := targets.In(s).Layer(ctx, "dev", g.Layers[data.LayerEdit{}.Layer()])
	if err != nil || !strings.Contains(string(text), "ann: ") || !strings.Contains(string(text), "ben: ") || looks != 2 {
		t.Errorf("after %d previews the rollout brings data %d, %q: %v", looks, g.Number, text, err)
	}
}

package promotion_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/data"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
)

// The task that renews statements holds a key without a person. It must not extend the time of an old state that somebody
// put back.
func TestRenewOnlyWhatIsInForce(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "statement: 24h\nroles:\n  web: {cardinality: 1}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	file := filepath.Join(t.TempDir(), "ann")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("cannot make a key: %v\n%s", err, out)
	}
	public, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	signers, err := trust.ParseSigners(append([]byte("ann@* "), public...), nil)
	if err != nil {
		t.Fatal(err)
	}
	at, one := time.Now().UTC().Truncate(time.Second), "1"
	author := promotion.Author{Author: targets.Author{By: "ann", At: at}, Key: &trust.Key{File: file}}
	if _, err := data.EditLayer(ctx, s, dev, data.LayerEdit{Keys: []data.KeyEdit{{Key: "x", Value: &one}}}, author); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after time.Duration
		saw   model.Epoch
		want  string
	}{
		{-time.Minute, 1, "in the future by this machine's clock"},
		{24 * time.Hour, 1, "it ended at"},
		{time.Hour, 2, "it is of epoch 1, and node web1 saw one of epoch 2"},
		{time.Hour, 1, ""},
	} {
		st := model.Status{Node: "web1", Signatures: &model.Signatures{State: model.SignaturesChecked, Statement: c.saw}}
		if err := control.In(s).Report(ctx, model.Identity{Node: "web1", Environment: "dev"}, st, nil, nil); err != nil {
			t.Fatal(err)
		}
		author.At = at.Add(c.after)
		_, err := promotion.Sign(ctx, s, dev, false, signers, author)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %s: %v, want %q", c.after, err, c.want)
		}
	}
}

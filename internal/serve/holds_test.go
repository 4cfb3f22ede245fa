package serve

import (
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// A hold that ends at night lets nodes change their target: somebody must hear of it. An operator's own unhold is no news.
func TestEndedHoldsAreAnnounced(t *testing.T) {
	t.Parallel()
	server, ctx, log := etcdtest.Start(t), t.Context(), &observe.Log{}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte("roles: {web: {cardinality: 1}}\n"))
	if err == nil {
		err = specs.In(s).PutSpec(ctx, e, 0)
	}
	n, notifyErr := notify.New(notify.Config{Notices: notify.NoticesIn(s), Now: time.Now, Log: log.Logger()})
	if err != nil || notifyErr != nil {
		t.Fatal(err, notifyErr)
	}
	now := time.Now().UTC().Truncate(time.Second)
	for _, scope := range []etcd.Scope{{}, {Role: "web"}, {Node: "web1"}} {
		h := model.Hold{Mode: model.Freeze, Who: "ann", Why: "disk swap", Since: now, Until: now.Add(time.Hour)}
		if scope.Node != "" {
			h.Until = time.Time{}
		}
		if err := fleet.In(s).Hold(ctx, dev, scope, h, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	at := now
	h := &holds{Tasks: &Tasks{TasksConfig: TasksConfig{DB: s, Now: func() time.Time { return at }, Log: log.Logger()}, Notifier: n}}
	look := func(announced int) {
		t.Helper()
		if err := h.look(ctx); err != nil || strings.Count(log.String(), "a hold ended") != announced {
			t.Errorf("announced %d of %d: %v\n%s", strings.Count(log.String(), "a hold ended"), announced, err, log)
		}
	}
	end := func(scope etcd.Scope) {
		t.Helper()
		if err := fleet.In(s).Unhold(ctx, dev, scope); err != nil {
			t.Fatal(err)
		}
	}
	look(0)
	end(etcd.Scope{}) // by an operator, before its end
	look(0)
	at = now.Add(time.Hour)
	look(0)
	end(etcd.Scope{Role: "web"}) // as its lease does
	end(etcd.Scope{Node: "web1"})
	look(1)
	look(1)
}

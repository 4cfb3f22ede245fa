package prune_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	pruning "pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// Operators promote during a prune. A promoted release must exist.
func TestPromotionsAndPrunesRace(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	for round := range 4 {
		promoteWhilePruning(t, fleettest.Open(t, server, fmt.Sprint("fleet", round)))
	}
}

func promoteWhilePruning(t *testing.T, st *etcd.DB) {
	ctx := t.Context()
	const n = 12
	all := fleettest.Line(t, st, n)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for _, i := range rand.Perm(n) {
			r, err := (choice.Taker{}).Resolve(ctx, release.In(st), all[i].Version)
			if errors.Is(err, etcd.ErrNotFound) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			d, err := targets.In(st).Desires(ctx, fleettest.Dev)
			if err == nil {
				_, err = targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, r.Target(), fleettest.Me)
			}
			if errors.Is(err, etcd.ErrConflict) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			if there, err := release.In(st).Get(ctx, r.Version); err != nil {
				t.Errorf("%s is promoted: %v", r.Version, err)
			} else if err := content.Audit(ctx, release.In(st), there.Content); err != nil {
				t.Errorf("%s is promoted: %v", r.Version, err)
			}
		}
	})
	wg.Go(func() {
		for last := false; !last; {
			select {
			case <-stop:
				last = true
			default:
			}
			plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
			if err == nil {
				_, err = pruning.ApplyPrune(ctx, st, plan)
			}
			if err != nil && !errors.Is(err, etcd.ErrConflict) {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if left, err := release.In(st).List(ctx); err != nil || len(left) > 3 {
		t.Errorf("left: %s, %v", versions(left), err)
	}
}

// A promotion that was decided before a prune must not select a deleted release.
func TestPromotionOfPrunedReleaseConflicts(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, etcdtest.Start(t), "")
	ctx := t.Context()
	all := fleettest.Line(t, st, 3)
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[2].Target())
	author := fleettest.Me
	author.Sign = func(context.Context, trust.Namespace, []byte) ([]byte, error) { // the permit to go back: all reads are done by then
		plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
		if err == nil {
			_, err = pruning.ApplyPrune(ctx, st, plan)
		}
		return nil, err
	}
	_, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), etcd.Scope{}, targets.Promoted, all[0].Target(), author)
	if !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("got %v", err)
	}
	if _, err := (choice.Taker{}).Resolve(ctx, release.In(st), "1.0.0"); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("it was to be pruned: %v", err)
	}
}

// A publisher does not resend objects that exist in etcd. They must not be pruned before its release names them.
func TestPublishersAndPrunesKeepEachOtherOut(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	nothing := func() error {
		plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
		if err == nil {
			_, err = pruning.ApplyPrune(ctx, st, plan)
		}
		return err
	}
	first, second := fleettest.Publishing(t, st, "ann"), fleettest.Publishing(t, st, "eve") // any number may publish at once
	if err := nothing(); err == nil || !strings.Contains(err.Error(), "cannot prune while ann publishes, since 2") {
		t.Errorf("a prune during a publish: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	if err := nothing(); err != nil {
		t.Errorf("no publisher is left: %v", err)
	}
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
	for value, said := range map[string]string{`{"v":1,"kind":"prune","by":"bob","since":"2026-05-04T12:00:00Z"}`: "cannot publish while bob prunes, since 2026-05-04T12:00:00Z\n", "?": "cannot publish while another program holds /pulley/v1/pruning\n"} {
		if _, err := server.Client().Put(ctx, "/pulley/v1/pruning", value); err != nil {
			t.Fatal(err)
		}
		if _, err := release.In(st).BeginPublish(ctx, "ann"); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("a publish during a prune: %v", err)
		}
		if err := nothing(); err == nil || !strings.Contains(err.Error(), "cannot prune while ") {
			t.Errorf("two prunes: %v", err)
		}
		server.Drop("/pulley/v1/pruning")
	}
	fleettest.Publishing(t, st, "ann")
}

// The same, for many concurrent publishers and prunes.
func TestPublishersAndPrunesRace(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	const rounds = 15
	end := time.Now().Add(60 * time.Second)
	patient := func(do func(context.Context) error) error {
		for {
			err := do(t.Context())
			if err == nil || !strings.Contains(err.Error(), " while ") || time.Now().After(end) {
				return err
			}
		}
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for round := range rounds {
				var p *release.Publishing
				err := patient(func(ctx context.Context) (err error) { p, err = release.In(st).BeginPublish(ctx, "ann"); return err })
				if err != nil {
					t.Error(err)
					return
				}
				hash := fmt.Sprintf("%064x", round*2+i)
				if _, err := release.In(st).PutObject(t.Context(), hash, []byte("x")); err != nil {
					t.Error(err)
				}
				for range 3 {
					if _, err := release.In(st).Object(t.Context(), hash); err != nil {
						t.Errorf("it was pruned from under a publisher: %v", err)
					}
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range rounds {
			err := patient(func(ctx context.Context) error {
				plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
				if err == nil {
					_, err = pruning.ApplyPrune(ctx, st, plan)
				}
				return err
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	plan, err := pruning.PlanPrune(t.Context(), st, fleettest.Few, time.Now())
	if err == nil {
		_, err = pruning.ApplyPrune(t.Context(), st, plan)
	}
	if keys := server.Keys(); err != nil || len(keys) != 0 {
		t.Errorf("left: %v, %v", keys, err)
	}
}

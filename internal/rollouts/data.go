package rollouts

import (
	"context"
	"errors"
	"fmt"

	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// DataChange is a change of live data, and the rollout that brings it to the nodes.
type DataChange struct {
	data.Edited
	Rollout *Rollout // nil: the generation is their target
}

// ChangeData makes a change of live data: edit makes a generation. With a.Rollout, the rollout of it starts then. If the data in force changed
// before the start, the change is made again from it, and no target ever names the first generation.
func ChangeData(ctx context.Context, s *etcd.DB, ref model.Ref, a Author, edit func() (data.Edited, error)) (done DataChange, err error) {
	var target model.Target
	for again := true; again; {
		if done.Edited, err = edit(); err != nil || !a.Rollout || !done.Made {
			return done, err
		}
		target, a.based = model.Target{Data: done.After.Data, DataDigest: done.After.DataDigest}, &done.Before.Data
		err = promotion.Retry(func() error {
			r, err := begin(ctx, s, ref, promotion.Scope{}, target, "", a)
			done.Rollout = &r
			return err
		})
		again = errors.Is(err, errDataChanged) && ctx.Err() == nil
	}
	if err != nil && !a.DryRun {
		err = fmt.Errorf("cannot roll out data %d of %s, which is stored now: %w\nto start its rollout again: `pulley rollout start --data %d -e %s`", target.Data, ref, err, target.Data, ref)
	}
	return done, err
}

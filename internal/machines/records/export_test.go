package records

import (
	"context"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// BeginApplyFor is BeginApply with a lock that lasts as long as the test needs.
func BeginApplyFor(ctx context.Context, s *etcd.DB, ref model.Ref, by string, lasts time.Duration) (*Applying, error) {
	return In(s).beginApply(ctx, ref, by, lasts)
}

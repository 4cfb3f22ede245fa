package store

import (
	"context"
	"time"

	"pulley/internal/model"
)

// BeginApplyFor is BeginApply with a lock that lasts as long as the test needs.
func BeginApplyFor(ctx context.Context, s *Store, ref model.Ref, by string, lasts time.Duration) (*Applying, error) {
	return s.Machines.beginApply(ctx, ref, by, lasts)
}

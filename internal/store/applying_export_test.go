package store

import (
	"context"
	"time"

	"pulley/environments"
)

// BeginApplyFor is BeginApply with a lock that lasts for as long as a test has time.
func BeginApplyFor(ctx context.Context, s *Store, ref environments.Ref, by string, lasts time.Duration) (*Applying, error) {
	return s.Machines.beginApply(ctx, ref, by, lasts)
}

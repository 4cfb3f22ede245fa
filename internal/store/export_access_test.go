package store

import (
	"context"

	"pulley/internal/model"
)

// ShutOut is the first part of a removal. Tests interrupt the removal after it.
var ShutOut = func(s *Store, ctx context.Context, ref model.Ref, node string) (bool, error) {
	return s.Joins.shutOut(ctx, ref, node)
}

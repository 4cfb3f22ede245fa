package store

import "context"

// ShutOut is the first part of a removal. Tests interrupt the removal after it.
var ShutOut = func(s *Store, ctx context.Context, env, node string) (bool, error) {
	return s.Joins.shutOut(ctx, env, node)
}

package access

import (
	"context"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// ShutOut is the first part of a removal. Tests interrupt the removal after it.
var ShutOut = func(s *etcd.DB, ctx context.Context, ref model.Ref, node string) (bool, error) {
	return JoinsIn(s).shutOut(ctx, ref, node)
}

package store

import (
	"context"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

func AllUnreadable(ctx context.Context, db *etcd.DB) (all map[model.Ref][]Unreadable, unread map[model.Ref]error, err error) {
	return allUnreadable(ctx, db)
}

func DeleteUnreadable(ctx context.Context, db *etcd.DB, ref model.Ref, u Unreadable) error {
	return deleteUnreadable(ctx, db, ref, u)
}

// DB is the connection.
func (s *Store) DB() *etcd.DB { return s.db }

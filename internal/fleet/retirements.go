package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// confirm finds the requests to retire without a confirmation. It reads the host list again before it accuses: a
// request may have ended after the first read.
func (s *Fleet) confirm(ctx context.Context, ref model.Ref, f *FleetState) error {
	k := s.db.Env(ref)
	confirmed, damaged, err := etcd.ReadAll[model.Confirmation](ctx, s.db, k.Retirement(""))
	if err != nil {
		return err
	}
	f.Damaged = append(f.Damaged, damaged...)
	var lacks []string
	for _, node := range slices.Sorted(maps.Keys(f.Hosts)) {
		c, ok := confirmed[node]
		if h := f.Hosts[node]; h.Retires() && !(ok && c.Confirms(*h.Request, h.MachineID)) {
			lacks = append(lacks, node)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	now, _, err := etcd.ReadAll[model.Host](ctx, s.db, k.Hosts())
	if err != nil {
		return err
	}
	for _, node := range lacks {
		if h := now[node]; h.Retires() && h.Request.ID == f.Hosts[node].Request.ID {
			f.Unconfirmed = append(f.Unconfirmed, node)
		}
	}
	return nil
}

// EndRetirements deletes the confirmations whose request ended. An operator can cancel a retirement, and cannot delete
// its confirmation: with it, the operator could write the same request again.
func (s *Fleet) EndRetirements(ctx context.Context, ref model.Ref) error {
	nodes, k := []string{}, s.db.Env(ref)
	err := s.db.Scan(ctx, k.Retirement(""), func(rest string, _ *etcd.KV) error {
		nodes = append(nodes, etcd.Unescape(rest))
		return nil
	})
	for _, node := range nodes {
		if err == nil {
			err = s.endRetirement(ctx, k.Host(node), k.Retirement(node))
		}
	}
	return etcd.Wrap(err, "cannot delete the confirmations of ended retirements in %s", ref)
}

// endRetirement deletes a confirmation, unless it is that of the request in the host list, or either key changes
// meanwhile. It keeps what it cannot read.
func (s *Fleet) endRetirement(ctx context.Context, host, confirmation string) error {
	var h model.Host
	var c model.Confirmation
	var unreadable error
	read := map[string]int64{}
	into := func(value any) func(*etcd.KV) error {
		return func(kv *etcd.KV) error {
			unreadable = cmp.Or(unreadable, etcd.Into(value)(kv))
			return nil
		}
	}
	_, err := s.db.Read(ctx, read, etcd.Point{Key: host, Read: into(&h)}, etcd.Point{Key: confirmation, Read: into(&c)})
	if err != nil || unreadable != nil || h.Retires() && c.Confirms(*h.Request, h.MachineID) {
		return err
	}
	err = s.db.Commit(ctx, etcd.If(etcd.Unchanged(read)...).Delete(confirmation))
	if errors.Is(err, etcd.ErrConflict) {
		return nil // a new request
	}
	return err
}

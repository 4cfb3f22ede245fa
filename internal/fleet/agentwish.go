package fleet

import (
	"context"

	"pulley/internal/desired"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// AgentWish reads an environment's document and the revision of its last write, or 0 if there is none.
func (s *Fleet) AgentWish(ctx context.Context, ref model.Ref) (w desired.AgentWish, revision int64, err error) {
	stored, revision, err := etcd.Single[desired.AgentWish](ctx, s.db, s.db.Env(ref).AgentChoice())
	if stored != nil {
		w = *stored
	}
	return w, revision, etcd.Wrap(err, "cannot read the agent versions of %s", ref)
}

// PutAgentWish stores the document. If the document was written since revision, the error wraps ErrConflict.
func (s *Fleet) PutAgentWish(ctx context.Context, ref model.Ref, w desired.AgentWish, revision int64) error {
	err := w.Fits()
	if err == nil {
		err = s.putAgentWish(ctx, ref, w, revision)
	}
	return etcd.Wrap(err, "cannot store the agent versions of %s", ref)
}

// putAgentWish refuses a change while a rollout is in progress: a failed node must have one cause.
func (s *Fleet) putAgentWish(ctx context.Context, ref model.Ref, w desired.AgentWish, revision int64) error {
	k := s.db.Env(ref)
	gate, gateRevision, err := etcd.Single[model.Gate](ctx, s.db, k.Gate())
	if err != nil {
		return err
	}
	if gate != nil && gate.Rollout != "" {
		return &targets.CampaignError{ID: gate.Rollout}
	}
	return s.db.Commit(ctx, etcd.If(etcd.Same(k.Gate(), gateRevision), etcd.Same(k.AgentChoice(), revision)).Put(k.AgentChoice(), w))
}

package targets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// wayBack is how long the permit to revert a rollout is valid from its start. Nobody takes back a document that was signed ahead: this
// end bounds who may replay it.
const wayBack = 30 * 24 * time.Hour

// Endings are the signed documents with which a rollout ends. An operator signs them at its start, for serve, which has no key.
type Endings struct {
	Completed Ending `json:"completed,omitzero"`
	Reverted  Ending `json:"reverted,omitzero"`
}

// Ending is what one end of a rollout publishes, as stored in its place.
type Ending struct {
	Permit    []byte `json:"permit,omitempty"`    // to the target after it, if that is lower
	Statement []byte `json:"statement,omitempty"` // of the targets after it, if the environment demands one
}

// PermitAt returns the permit of the ending if it is that of an epoch. It does not verify the signature.
func (e *Ending) PermitAt(epoch model.Epoch) (trust.Permit, bool) {
	if e == nil {
		return trust.Permit{}, false
	}
	record, signatures := trust.Split(e.Permit)
	p, err := trust.ParsePermit(record)
	return p, err == nil && signatures != nil && p.Epoch == int64(epoch)
}

// rolled returns the part of a statement for the rollout that the change started.
func (c Change) rolled() *trust.Rolled {
	return &trust.Rolled{Role: c.Role, Part: partOf(c.Rollout.Target)}
}

// started returns the start of the rollout that owns a gate; nil if there is none.
func (p past) started(g model.Gate) *Change {
	for _, e := range p {
		if c := e.change; c != nil && c.Kind == RolloutStarted && c.Epoch == g.Epoch && c.Rollout != nil && c.Rollout.ID == g.Rollout {
			return c
		}
	}
	return nil
}

// SignStart adds what nodes with allowed signers need for the start of a rollout and for its end: permits to go back, and statements if the environment
// demands them. Without a key it adds nothing.
func (s *Targets) SignStart(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, start Change, a Author) error {
	if a.Sign == nil {
		if d.Demands.Statement != 0 {
			return errors.New("the environment demands a statement of its targets, and nothing signs one\ngive --sign-key FILE")
		}
		return nil
	}
	history, err := s.past(ctx, ref.String(), d)
	if err != nil {
		return err
	}
	taken := start
	taken.After = start.Rollout.Target.Overlay(start.Before)
	if err := s.permit(ctx, b, ref, d, history, &taken, a.Sign); err != nil {
		return err
	}
	if err := s.restate(ctx, b, ref, d, history, &start, a); err != nil {
		return err
	}
	d.Gate.Epoch = start.Epoch
	return s.putEndings(ctx, b, ref, d, append(history, entry{key: s.db.Env(ref).Change(start.Epoch), change: &start}), start, a)
}

// putEndings adds the documents with which a rollout may end. All ends have the epoch after its start, because nothing else changes a
// target meanwhile. The epoch of d is that of the start, which is the last change of the history.
func (s *Targets) putEndings(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, history past, start Change, a Author) error {
	if a.Sign == nil {
		return nil
	}
	var e Endings
	completed, reverted := start, start
	completed.Kind, completed.After = Promoted, start.Rollout.Target.Overlay(start.Before)
	reverted.Kind, reverted.until = Reverted, a.At.Add(wayBack)
	for _, end := range []struct {
		by   Change
		into *Ending
	}{{completed, &e.Completed}, {reverted, &e.Reverted}} {
		c := end.by
		c.Epoch, c.At = d.Gate.Epoch+1, a.At.UTC().Truncate(time.Second)
		permit, err := s.signedPermit(ctx, ref, d, history, &c, a.Sign)
		if err != nil {
			return err
		}
		statement, err := s.signedStatement(ctx, ref, d, history, &c, a)
		if err != nil {
			return err
		}
		end.into.Permit, end.into.Statement = []byte(permit), []byte(statement)
	}
	b.Put(s.db.Env(ref).CampaignEndings(start.Rollout.ID), e)
	return nil
}

// Endings reads the documents with which a rollout may end. Without any, it returns empty ones.
func (s *Targets) Endings(ctx context.Context, ref model.Ref, id string) (e Endings, revision int64, err error) {
	stored, revision, err := etcd.Single[Endings](ctx, s.db, s.db.Env(ref).CampaignEndings(id))
	if stored != nil {
		e = *stored
	}
	return e, revision, err
}

// renewEndings adds the statements with which the rollout in progress may end, with another end of their validity.
func (s *Targets) renewEndings(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, authentic func(trust.SignedStatement) error, valid time.Duration, a Author) error {
	if d.Gate.Rollout == "" {
		return nil
	}
	e, revision, err := s.Endings(ctx, ref, d.Gate.Rollout)
	if err != nil || revision == 0 {
		return err
	}
	for _, end := range []*Ending{&e.Completed, &e.Reverted} {
		if len(end.Statement) == 0 {
			continue
		}
		st, err := trust.ParseStatement(end.Statement)
		if err == nil && st.Epoch != int64(d.Gate.Epoch)+1 {
			err = fmt.Errorf("its epoch is %d, not %d", st.Epoch, d.Gate.Epoch+1)
		}
		if err == nil {
			err = authentic(st)
		}
		if err != nil {
			return fmt.Errorf("cannot renew a statement for the end of rollout %s: %w", d.Gate.Rollout, err)
		}
		_, document, err := a.sign(ctx, st.Statement, valid)
		if err != nil {
			return err
		}
		end.Statement = []byte(document)
	}
	key := s.db.Env(ref).CampaignEndings(d.Gate.Rollout)
	b.If(etcd.Same(key, revision)).Put(key, e)
	return nil
}

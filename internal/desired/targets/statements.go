package targets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// ErrNoStatement means that an environment demands no statement of its targets.
var ErrNoStatement = errors.New("its file demands no statement")

// restate adds a statement of the targets after c, if the environment demands one: a new one, or that which was signed before. A
// recovery changes several scopes, and is followed by one statement.
func (s *Targets) restate(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, history past, c *Change, a Author) error {
	document, err := s.signedStatement(ctx, ref, d, history, c, a)
	if c.Unstated && c.Ending != nil && len(c.Ending.Statement) > 0 {
		document, c.Unstated = string(c.Ending.Statement), false
	}
	if document != "" {
		b.Op(clientv3.OpPut(s.db.Env(ref).Statement(), document))
	}
	return err
}

// signedStatement returns the statement of the targets after c; "" if the environment demands none, or nothing signs it: then it sets
// c.Unstated.
func (s *Targets) signedStatement(ctx context.Context, ref model.Ref, d Desires, history past, c *Change, a Author) (string, error) {
	if d.Demands.Statement == 0 {
		return "", nil
	}
	if c.Unstated = a.Sign == nil || c.recovery != nil; c.Unstated {
		return "", nil
	}
	if err := s.plausibleEpoch(ref.String(), d, history, a.At); err != nil {
		return "", fmt.Errorf("cannot sign the statement of the targets: %w", err)
	}
	if err := d.continued(ref, c.Scope()); err != nil {
		return "", fmt.Errorf("cannot sign the statement of the targets: %w", err)
	}
	after := d.With(c.Scope(), c.After)
	if err := after.decided(ref, history, *c); err != nil {
		return "", fmt.Errorf("cannot sign the statement of the targets: %w", err)
	}
	st := after.Stated(ref, c.Epoch)
	if c.Kind == RolloutStarted {
		st.Rollout = c.rolled()
	}
	_, document, err := a.sign(ctx, st, time.Duration(d.Demands.Statement))
	return document, err
}

// Stating is the kind of a statement.
type Stating string

// The kinds of statements.
const (
	Anew  Stating = "anew"  // of the targets in force
	Renew Stating = "renew" // the present one, with another end
	Off   Stating = "off"   // nodes need no statement
)

// State signs a statement of the targets in d, valid as long as the environment's file says, and with it those with which a rollout
// in progress may end. A renewal calls authentic for these. State refuses targets that are not those of the history, and returns
// ErrConflict if they changed since d was read.
func (s *Targets) State(ctx context.Context, ref model.Ref, d Desires, kind Stating, a Author, authentic func(trust.SignedStatement) error) (trust.Statement, error) {
	fail := func(err error) (trust.Statement, error) {
		return trust.Statement{}, fmt.Errorf("cannot sign the statement of the targets of %s: %w", ref, err)
	}
	valid := time.Duration(d.Demands.Statement)
	switch {
	case kind == Off:
		valid = 0
	case valid == 0:
		return fail(fmt.Errorf("%w\nadd `statement: 24h` to it, then run `pulley env apply`", ErrNoStatement))
	}
	history, err := s.past(ctx, ref.String(), d)
	if err != nil {
		return fail(err)
	}
	if err := s.plausibleEpoch(ref.String(), d, history, a.At); err != nil {
		return fail(err)
	}
	if err := d.decided(ref, history, Change{}); err != nil {
		return fail(err)
	}
	k := s.db.Env(ref)
	b := etcd.If(etcd.Same(k.Gate(), d.GateRevision), etcd.Same(k.Statement(), d.Revisions[k.Statement()]))
	st := d.Stated(ref, d.Gate.Epoch)
	if kind == Renew {
		st = d.Statement.Statement // with the targets of removed nodes: a renewal decides nothing
		err = s.renewEndings(ctx, b, ref, d, authentic, valid, a)
	} else if start := history.started(d.Gate); start != nil && kind == Anew {
		st.Rollout = start.rolled()
		err = s.putEndings(ctx, b, ref, d, history, *start, a)
	}
	if err != nil {
		return fail(err)
	}
	st, document, err := a.sign(ctx, st, valid)
	if err != nil {
		return fail(err)
	}
	if err := s.db.Commit(ctx, b.Op(clientv3.OpPut(k.Statement(), document))); err != nil {
		return fail(err)
	}
	return st, nil
}

// sign signs a statement and returns its value for etcd. With no validity, it ends the demand.
func (a Author) sign(ctx context.Context, st trust.Statement, valid time.Duration) (trust.Statement, string, error) {
	st.By, st.At, st.Until, st.Off = a.By, a.At.UTC().Truncate(time.Second), time.Time{}, valid == 0
	if !st.Off {
		st.Until = st.At.Add(valid)
	}
	record, err := st.Encode()
	if err != nil {
		return st, "", err
	}
	document, err := a.Sign.Document(ctx, trust.Current, record)
	return st, document, err
}

// decided returns an error if a target in d is not that of its last change, or of c. A signer must not sign a target that
// somebody wrote by hand.
func (d Desires) decided(ref model.Ref, history past, c Change) error {
	decided := map[etcd.Scope]model.Target{}
	for _, scope := range d.Scopes() {
		decided[scope] = model.Target{}
	}
	for _, h := range history.changes() { // the oldest first
		decided[h.Scope()] = h.After
	}
	if c.Kind != "" {
		decided[c.Scope()] = c.After
	}
	for scope, t := range decided {
		if d.Target(scope) != t && (scope.Node == "" || d.Target(scope) != (model.Target{})) {
			return fmt.Errorf("the target of %s is not that of its last change\nfind who wrote it; `pulley recover -e %s` restores it", scope, ref)
		}
	}
	return nil
}

// continued returns an error if another scope than the changed one differs from the present statement. A change decides one
// scope: with the next statement, its author would sign what somebody wrote for the others.
func (d Desires) continued(ref model.Ref, changed etcd.Scope) error {
	remedy := fmt.Sprintf("check `pulley history -e %s` and `pulley sign -e %[1]s --dry-run --sign-key FILE`, which lists what is new; without --dry-run, it signs all targets", ref)
	if d.Statement == nil {
		for _, scope := range d.Scopes() {
			if scope != changed && d.Target(scope) != (model.Target{}) {
				return fmt.Errorf("etcd has none for the target of %s\n%s", scope, remedy)
			}
		}
		return nil
	}
	for _, scope := range d.Differing() {
		if scope != changed {
			return fmt.Errorf("the target of %s is not that of the last statement\n%s", scope, remedy)
		}
	}
	return nil
}

// Differing lists the scopes whose target is not that of the present statement: all nodes, then roles and nodes, each in order. The
// target of a removed node is deleted without a change, and no other node has it.
func (d Desires) Differing() (scopes []etcd.Scope) {
	was := d.ByStatement()
	all := d
	all.Roles, all.Nodes = maps.Clone(was.Roles), maps.Clone(was.Nodes)
	maps.Copy(all.Roles, d.Roles)
	maps.Copy(all.Nodes, d.Nodes)
	for _, scope := range all.Scopes() {
		if t := d.Target(scope); t != was.Target(scope) && (scope.Node == "" || t != (model.Target{})) {
			scopes = append(scopes, scope)
		}
	}
	return scopes
}

// Stated returns an unsigned statement of the targets in d.
func (d Desires) Stated(ref model.Ref, epoch model.Epoch) trust.Statement {
	parts := func(targets map[string]model.Target) map[string]trust.Part {
		var all map[string]trust.Part
		for name, t := range targets {
			if t != (model.Target{}) {
				if all == nil {
					all = map[string]trust.Part{}
				}
				all[name] = partOf(t)
			}
		}
		return all
	}
	return trust.Statement{Environment: ref.String(), Epoch: int64(epoch), Default: partOf(d.Default), Roles: parts(d.Roles), Nodes: parts(d.Nodes)}
}

func partOf(t model.Target) trust.Part {
	return trust.Part{Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
}

// ByStatement returns d with the targets that its statement names.
func (d Desires) ByStatement() Desires {
	target := func(p trust.Part) model.Target {
		return model.Target{Release: p.Release, Tree: p.Tree, Data: model.Generation(p.Data), DataDigest: p.DataDigest}
	}
	st := d.Statement
	d.Default, d.Roles, d.Nodes = target(st.Default), map[string]model.Target{}, map[string]model.Target{}
	for role, p := range st.Roles {
		d.Roles[role] = target(p)
	}
	for node, p := range st.Nodes {
		d.Nodes[node] = target(p)
	}
	return d
}

// Covered reports whether the statement in etcd names the targets and the epoch in d.
func (d Desires) Covered(ref model.Ref) bool {
	if d.Statement == nil || d.Statement.Off || d.Statement.Epoch != int64(d.Gate.Epoch) {
		return false
	}
	return len(d.Differing()) == 0
}

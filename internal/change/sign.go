package change

import (
	"context"
	"errors"
	"fmt"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// ErrChangedSince means that a statement cannot be renewed, because the targets in etcd are not those that it names.
var ErrChangedSince = errors.New("the targets changed since the last statement")

// Sign signs a statement of the targets in force. With off, it ends the demand of nodes for one. With signers, it only
// renews: the present statement must be authentic, and must name exactly the targets in force.
func Sign(ctx context.Context, s *store.Store, ref environments.Ref, off bool, signers *trust.Signers, a Author) (st trust.Statement, err error) {
	if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
		return st, err
	}
	kind := store.Anew
	switch {
	case off:
		kind = store.Off
	case signers != nil:
		kind = store.Renew
	}
	err = Retry(func() error {
		d, err := s.Targets.Desires(ctx, ref)
		if err == nil && signers != nil {
			err = renewable(ref, d, signers, a)
		}
		if err != nil {
			return fmt.Errorf("cannot sign the statement of the targets of %s: %w", ref, err)
		}
		st, err = s.Targets.State(ctx, ref, d, kind, a.store())
		return err
	})
	return st, err
}

func renewable(ref environments.Ref, d store.Desires, signers *trust.Signers, a Author) error {
	if d.Statement == nil {
		return errors.New("there is none to renew\na signer signs the first one: `pulley sign` without --renew")
	}
	if err := signers.Authentic(*d.Statement, ref.String(), a.At); err != nil {
		return err
	}
	if !d.Covered(ref) {
		return fmt.Errorf("%w of epoch %d\ncheck them with `pulley history`; a signer signs them: `pulley sign` without --renew", ErrChangedSince, d.Statement.Epoch)
	}
	return nil
}

// Restate signs a statement after a recovery, if the environment demands one. Without a key it signs nothing, and reports
// that the statement is missing.
func Restate(ctx context.Context, s *store.Store, ref environments.Ref, a Author) (st trust.Statement, missing bool, err error) {
	e, err := fleet.FindEnvironment(ctx, s.Environments, ref)
	if err != nil || e.Statement == 0 || a.Key == nil {
		return st, err == nil && e.Statement != 0, err
	}
	st, err = Sign(ctx, s, ref, false, nil, a)
	return st, err != nil, err
}

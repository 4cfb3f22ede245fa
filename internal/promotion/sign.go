package promotion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

// ErrChangedSince means that a statement cannot be renewed, because the targets in etcd are not those that it names.
var ErrChangedSince = errors.New("the targets changed since the last statement")

// Restated is a target that the previous statement did not have.
type Restated struct {
	Scope  Scope
	Was    model.Target
	Target model.Target
}

// Signed is a signed statement, and its differences from the previous one.
type Signed struct {
	trust.Statement
	New []Restated
}

// Sign signs a statement of the targets in force. With off, it ends the demand of nodes for one. With signers, it only
// renews: the present statement must be authentic, and must name exactly the targets in force.
func Sign(ctx context.Context, s *etcd.DB, ref model.Ref, off bool, signers *trust.Signers, a Author) (st Signed, err error) {
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return st, err
	}
	kind := targets.Anew
	switch {
	case off:
		kind = targets.Off
	case signers != nil:
		kind = targets.Renew
	}
	err = Retry(func() error {
		d, err := targets.In(s).Desires(ctx, ref)
		if err == nil && signers != nil {
			err = renewable(ctx, s, ref, d, signers, a)
		}
		if err != nil {
			return fmt.Errorf("cannot sign the statement of the targets of %s: %w", ref, err)
		}
		st = Signed{}
		if d.Statement != nil {
			was := d.ByStatement()
			for _, scope := range d.Differing() {
				st.New = append(st.New, Restated{scope, was.Target(scope), d.Target(scope)})
			}
		}
		st.Statement, err = targets.In(s).State(ctx, ref, d, kind, a.Signing(), func(ending trust.SignedStatement) error {
			if err := signers.Authentic(ending, ref.String(), a.At); err != nil {
				return err
			}
			return inTime(ending, a.At, renewRemedy(ref))
		})
		return err
	})
	return st, err
}

// renewable refuses a statement that only a signer may sign: an old one that somebody put back would stay in force.
func renewable(ctx context.Context, s *etcd.DB, ref model.Ref, d targets.Desires, signers *trust.Signers, a Author) error {
	if d.Statement == nil {
		return fmt.Errorf("there is none to renew\na signer signs the first one: `pulley sign -e %s --sign-key FILE`", ref)
	}
	if err := signers.Authentic(*d.Statement, ref.String(), a.At); err != nil {
		return err
	}
	remedy := renewRemedy(ref)
	if !d.Covered(ref) {
		return fmt.Errorf("%w of epoch %d\n%s", ErrChangedSince, d.Statement.Epoch, remedy)
	}
	if err := inTime(*d.Statement, a.At, remedy); err != nil {
		return err
	}
	f, err := fleet.In(s).State(ctx, ref)
	if err != nil {
		return err
	}
	for _, node := range slices.Sorted(maps.Keys(f.Hosts)) {
		if sig := f.Statuses[node].Signatures; sig != nil && int64(sig.Statement) > d.Statement.Epoch && targets.PlausibleEpoch(sig.Statement, a.At) {
			return fmt.Errorf("it is of epoch %d, and node %s saw one of epoch %d\n%s", d.Statement.Epoch, node, sig.Statement, remedy)
		}
	}
	return nil
}

func renewRemedy(ref model.Ref) string {
	return fmt.Sprintf("check the targets with `pulley history -e %s`; a signer signs them: `pulley sign -e %[1]s --sign-key FILE`", ref)
}

// inTime refuses to renew a statement that ended, or that is from the future.
func inTime(st trust.SignedStatement, now time.Time, remedy string) error {
	switch {
	case st.Ended(now):
		return fmt.Errorf("it ended at %s\n%s", st.Until.Format(time.RFC3339), remedy)
	case st.At.After(now):
		return fmt.Errorf("it was signed at %s, which is in the future by this machine's clock\ncorrect the clock: nodes refuse an earlier time", st.At.Format(time.RFC3339))
	}
	return nil
}

// Restate signs a statement after a recovery, if the environment demands one. Without a key it signs nothing, and reports
// that the statement is missing.
func Restate(ctx context.Context, s *etcd.DB, ref model.Ref, a Author) (st Signed, missing bool, err error) {
	e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
	if err != nil || e.Statement == 0 || a.Key == nil {
		return st, err == nil && e.Statement != 0, err
	}
	st, err = Sign(ctx, s, ref, false, nil, a)
	return st, err != nil, err
}

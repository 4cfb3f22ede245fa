package doctor

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"pulley/internal/access/fleetca"
	"pulley/internal/data"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/specs"
)

// unreadableSecrets finds secrets that no node decrypts, those whose rotation was interrupted, and those that removed nodes can still decrypt.
func unreadableSecrets(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env := e.ref.String()
		if e.secretsErr != nil {
			all = append(all, Finding{Code: secretsUnread, Severity: Warning, Environment: env, Params: Params{Text: model.Prose(e.secretsErr.Error())}})
		}
		former := map[string]int64{}
		lost := 0
		for _, one := range e.secrets {
			switch {
			case one.Current:
			case !one.Since.IsZero() && !one.NoNode:
				former[one.Role]++
			default:
				if lost++; lost <= oneByOne {
					all = append(all, Finding{Code: secretLost, Severity: Problem, Environment: env, Params: Params{Subject: one.Key, Kind: string(one.Layer), Role: one.Role}})
				}
			}
		}
		if more := lost - oneByOne; more > 0 {
			all = append(all, Finding{Code: moreSecretsLost, Severity: Problem, Environment: env, Params: Params{Count: int64(more)}})
		}
		for role, n := range sorted(e.unrotated) {
			all = append(all, Finding{Code: secretsUnrotated, Severity: Warning, Environment: env, Params: Params{Role: role, Count: n}})
		}
		for role, n := range sorted(former) {
			all = append(all, Finding{Code: secretsFormer, Severity: Warning, Environment: env, Params: Params{Role: role, Count: n}})
		}
	}
	return all
}

// Decrypts reports whether the identities of a scope's recipients are not lost. lost is true if they are; err is any other
// reason why this cannot be found out.
type Decrypts func(ctx context.Context, ref model.Ref, role string, r targets.Recipients) (lost bool, err error)

// KeyIn returns a Decrypts with the key in the data folder of serve.
func KeyIn(dataDir string, o pki.Options) (Decrypts, error) {
	ca, err := fleetca.OpenExisting(dataDir, o)
	if err != nil {
		return nil, err
	}
	key, keyErr := secrets.Key(ca, false)
	return func(_ context.Context, _ model.Ref, _ string, r targets.Recipients) (bool, error) {
		if keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist) { // it is not lost
			return false, keyErr
		}
		return keyErr != nil || slices.ContainsFunc(r.Recipients, func(one targets.Recipient) bool {
			_, err := secrets.Unwrap(key, one.Identity, one.Recipient)
			return err != nil
		}), nil
	}, nil
}

// ExamineSecrets finds recipients whose identities are lost: nodes that need them again, and rotations, fail.
func ExamineSecrets(ctx context.Context, st *etcd.DB, decrypts Decrypts) (all []Finding, err error) {
	refs, err := specs.In(st).Named(ctx)
	if err != nil {
		return nil, err
	}
	examined := int64(0)
	for _, ref := range refs {
		scopes, _, err := targets.In(st).AllRecipients(ctx, ref)
		if err != nil {
			return nil, err
		}
		for role, r := range sorted(scopes) {
			lost, err := decrypts(ctx, ref, role, r)
			f := Finding{Environment: ref.String(), Params: Params{Role: role}}
			switch {
			case err != nil:
				f.Code, f.Severity, f.Params.Text = secretsUnread, Warning, model.Prose(err.Error())
				return named("secrets", append(all, f)), nil // the same for the others
			case lost:
				f.Code, f.Severity = identityLost, Problem
				all = append(all, f)
			default:
				examined++
			}
		}
	}
	if len(all) == 0 && examined > 0 {
		all = append(all, Finding{Code: identitiesFine, Severity: Fine, Params: Params{Count: examined}})
	}
	return named("secrets", all), nil
}

func readSecrets(ctx context.Context, st *etcd.DB, e *environment) {
	if e.spec != nil {
		e.secrets, e.secretsErr = data.ListSecrets(ctx, st, e.ref, "")
	}
	if e.spec == nil || e.secretsErr != nil || len(e.secrets) == 0 {
		return
	}
	var have map[string]targets.Recipients
	if have, _, e.secretsErr = targets.In(st).AllRecipients(ctx, e.ref); e.secretsErr != nil {
		return
	}
	e.unrotated = map[string]int64{}
	for _, i := range e.identities {
		if i.Removed == nil || !i.Removed.Rotate {
			continue
		}
		for _, r := range data.PendingRotations(e.spec, have, i) {
			e.unrotated[r.Role]++
		}
	}
}

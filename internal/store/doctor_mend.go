package store

import (
	"context"
	"fmt"
)

// mend puts right what decides nothing: grants and roles that differ from what they should be, and users and roles that
// belong to nobody. What it did is told as findings that are well.
func (s *Doctor) mend(ctx context.Context, d *Diagnosis, a access, fleets []fleetFacts) error {
	if !a.on {
		return nil
	}
	if err := s.access.EnsureOperatorRoles(ctx); err != nil {
		return err
	}
	if err := s.cluster.ensureInstallation(ctx, s.db.CallerName); err != nil {
		return err
	}
	for _, f := range fleets {
		env := f.ref.String()
		if f.spec == nil {
			continue
		}
		if err := s.access.EnsureEnvironment(ctx, env); err != nil {
			return err
		}
		called := f.called()
		for node := range sorted(f.reserves) {
			if i := f.identities[node]; !called[node] || i.Live() {
				if err := s.identities.DropPrecreated(ctx, f.ref, node); err != nil {
					return err
				}
			}
		}
	}
	if err := s.mendNodes(ctx, a, fleets); err != nil {
		return err
	}
	// Records are written before users are made, so that what is not in records read after the users belongs to nobody.
	fresh, err := s.examineFleets(ctx)
	if err != nil {
		return err
	}
	operators, damaged, err := s.identities.Operators(ctx)
	if err != nil {
		return err
	}
	for _, f := range fresh {
		damaged = append(damaged, f.damaged...)
	}
	if len(damaged) > 0 { // whose user it is may stand in what can't be read
		d.add("mended", Warning, "users that belong to nobody were left alone: not every record can be read", "")
		return nil
	}
	for _, o := range operators {
		if o.Live() && a.has(o.User) {
			if err := s.access.EnsureOperator(ctx, o.User, o.As); err != nil {
				return err
			}
		}
	}
	users, roles := s.strays(a, fresh, operators)
	for _, n := range users {
		if err := s.access.DropUser(ctx, n.String()); err != nil {
			return err
		}
	}
	for _, r := range roles {
		if err := s.access.DropNodeRole(ctx, r[0], r[1]); err != nil {
			return err
		}
	}
	d.add("mended", Fine, fmt.Sprintf("grants are as they should be; %d users and %d roles that belonged to nobody are gone", len(users), len(roles)), "")
	return nil
}

// mendNodes gives the nodes whose role or user differs from what it should be what they should have. One without its user
// may have been removed: that is not undone.
func (s *Doctor) mendNodes(ctx context.Context, a access, fleets []fleetFacts) error {
	var wrong Diagnosis
	s.judgeRoles(&wrong, a, fleets)
	users := map[[2]string]string{}
	for _, f := range fleets {
		for node, r := range f.reserves {
			users[[2]string{f.ref.String(), node}] = r.User
		}
		for node, i := range f.identities {
			if i.Live() {
				users[[2]string{f.ref.String(), node}] = i.User
			}
		}
	}
	for _, w := range wrong {
		if user := users[[2]string{w.Environment, w.Node}]; w.Severity == Problem && a.has(user) {
			if err := s.access.EnsureNode(ctx, w.Environment, w.Node, user); err != nil {
				return err
			}
		}
	}
	return nil
}

package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// Signers reports whether the stored environment requires signatures, or gives allowed signers to nodes of a scope: these
// nodes refuse everything unsigned.
func Signers(f fleet.FleetState, scope Scope) bool {
	e := f.Spec
	if e == nil || e.Signatures == model.SignaturesRequired {
		return e != nil
	}
	role := cmp.Or(scope.Role, f.RoleOf(scope.Node))
	return scope == (Scope{}) && e.Userdata.AllowedSigners != "" || slices.ContainsFunc(e.Roles, func(r environments.Role) bool {
		return (scope == (Scope{}) || r.Name == role) && e.UserdataOf(r).AllowedSigners != ""
	})
}

// UnsignedError refuses a change that nodes with allowed signers would refuse. remedy is a command line that signs it.
func UnsignedError(doing string, ref model.Ref, remedy string) error {
	return fmt.Errorf("cannot %s: it would be unsigned, and the nodes of %s have allowed signers\n%s\nto do it unsigned, give --unsigned", doing, ref, remedy)
}

// CheckUnsigned refuses to publish an unsigned release if the nodes of any environment would refuse it. An environment
// that is unreadable does not count.
func CheckUnsigned(ctx context.Context, s *specs.Environments, version string) error {
	names, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue
		}
		e, _, err := s.Spec(ctx, ref)
		switch {
		case errors.Is(err, model.ErrUnreachable):
			return err
		case err == nil && Signers(fleet.FleetState{Spec: e}, Scope{}):
			return UnsignedError("publish "+version, ref, "give --sign-key FILE")
		}
	}
	return nil
}

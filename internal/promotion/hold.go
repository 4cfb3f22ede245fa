package promotion

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Hold sets a hold on a scope, and returns the hold that it replaces, if any. It refuses to replace a stronger one unless
// replace is set: another operator relies on it.
func Hold(ctx context.Context, s *fleet.Fleet, ref model.Ref, scope Scope, h model.Hold, lasts time.Duration, replace bool) (replaced *model.Hold, err error) {
	err = Retry(func() error {
		was, revision, err := s.HoldOf(ctx, ref, scope)
		if err != nil {
			return err
		}
		if was != nil && !replace && weakens(h, *was) {
			return fmt.Errorf("cannot hold %s: the hold in force is stronger: %s\nto replace it, give --replace", scope, DescribeHold(*was))
		}
		replaced = was
		return s.Hold(ctx, ref, scope, h, lasts, revision)
	})
	return replaced, err
}

// CompareScopes orders all nodes first, then roles, then nodes by their natural names.
func CompareScopes(a, b Scope) int {
	return cmp.Or(fleet.CompareNatural(a.Node, b.Node), strings.Compare(a.Role, b.Role)) // "" comes first
}

// weakens reports whether a hold permits what another one forbids: it stops nothing, or it ends earlier.
func weakens(h, was model.Hold) bool {
	return slices.Index(model.HoldModes(), h.Mode) < slices.Index(model.HoldModes(), was.Mode) || !h.Until.IsZero() && (was.Until.IsZero() || h.Until.Before(was.Until))
}

// DescribeHold formats a hold for people, without its scope.
func DescribeHold(h model.Hold) string {
	text := string(h.Mode)
	if h.Who != "" {
		text += " by " + h.Who
	}
	if h.Until.IsZero() {
		text += ", without an end"
	} else {
		text += ", until " + h.Until.UTC().Format(time.RFC3339)
	}
	if h.Why != "" {
		text += ": " + string(h.Why)
	}
	return text
}

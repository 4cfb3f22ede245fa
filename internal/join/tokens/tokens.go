// Package tokens creates join tokens: it checks a request against the fleet, and stores the token's hash.
//
// It must never store or log a token's secret.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
)

// Lifetimes of a token.
const (
	DefaultLifetime = 24 * time.Hour
	MaxLifetime     = 90 * 24 * time.Hour
)

// maxAttempts bounds the attempts against other writers.
const maxAttempts = 5

// Request describes the token: for a node, a role or any node of an environment, or for an operator.
type Request struct {
	Ref      model.Ref
	Node     string
	Role     string
	RoleIs   string // the role that Node must have; "" is any
	Operator string
	As       access.OperatorRole // of the operator
	Uses     int                 // 0 is unlimited
	Lifetime time.Duration
	By, Why  string
}

// Check reports the first mistake that it can find without etcd.
func (r Request) Check() error {
	switch {
	case r.Lifetime < time.Second || r.Lifetime > MaxLifetime:
		return fmt.Errorf("cannot make a token for %s: give --expires at least 1s and at most 90d", r.Lifetime)
	case r.Uses < 0:
		return fmt.Errorf("cannot make a token of %d uses: give --uses 1 or more, or 0 for any number", r.Uses)
	case r.Node != "" && r.Role != "":
		return errors.New("--role and --node exclude each other")
	case r.Operator == "" && r.As != "":
		return errors.New("--as is the role of an operator: give --operator NAME too")
	case r.Operator != "" && (r.Node != "" || r.Role != "" || r.Ref != model.Ref{}):
		return errors.New("a token is for an operator or for nodes: leave out --operator, or -e, --role and --node")
	case r.Operator == "":
		return nil
	}
	name := pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: r.Operator, Incarnation: pki.NewIncarnation()}
	if err := name.Check(); err != nil {
		return fmt.Errorf("cannot use %q as an operator's name: use letters, digits and -_.@+", r.Operator)
	}
	if r.As == "" {
		return fmt.Errorf("missing the role of %s: give --as viewer, operator or admin", r.Operator)
	}
	_, err := access.ParseOperatorRole(string(r.As))
	return err
}

// Create creates a token and returns its text, which is not stored. A token that no machine could use is an error.
func Create(ctx context.Context, s *etcd.DB, r Request, now time.Time) (text string, t access.Token, err error) {
	if err := r.Check(); err != nil {
		return "", t, err
	}
	if r.Operator == "" {
		if err := r.checkNodes(ctx, s); err != nil {
			return "", t, err
		}
		t = access.Token{Environment: r.Ref.String(), Role: r.Role, Node: r.Node}
	}
	t.Operator, t.As, t.Uses, t.By, t.Why = r.Operator, r.As, r.Uses, r.By, model.Prose(r.Why)
	t.Created = now.UTC().Truncate(time.Second)
	t.Expires = t.Created.Add(r.Lifetime)
	for attempt := 1; ; attempt++ {
		text, created, err := access.TokensIn(s).Create(ctx, t)
		if !errors.Is(err, etcd.ErrConflict) || attempt == maxAttempts {
			return text, created, err
		}
	}
}

// checkNodes checks the node or role against the environment.
func (r Request) checkNodes(ctx context.Context, s *etcd.DB) error {
	e, err := fleet.FindEnvironment(ctx, specs.In(s), r.Ref)
	if err != nil {
		return err
	}
	if r.Role != "" {
		return fleet.CheckRole(e, r.Role)
	}
	if r.Node == "" {
		return nil
	}
	hosts, err := fleet.In(s).Hosts(ctx, r.Ref)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for n := range hosts {
		known[n] = true
	}
	if err := fleet.CheckNode(e, known, r.Node); err != nil {
		return err
	}
	role := hosts[r.Node].Role
	if of, ok := e.RoleOf(r.Node); ok {
		role = of.Name
	}
	if r.RoleIs != "" && r.RoleIs != role {
		return fmt.Errorf("cannot make a token for %s with role %q: in %s it has role %q", r.Node, r.RoleIs, r.Ref, role)
	}
	return nil
}

// State is the code of a token's validity.
type State string

// The states of a token.
const (
	Valid   State = "valid"
	Revoked State = "revoked"
	Expired State = "expired"
	UsedUp  State = "used_up"
)

// StateOf returns a token's state.
func StateOf(t access.Token, now time.Time) State {
	switch {
	case t.Revoked != nil:
		return Revoked
	case !now.Before(t.Expires):
		return Expired
	case t.UsedUp():
		return UsedUp
	}
	return Valid
}

// Scope renders the scope of a token.
func Scope(t access.Token) string {
	switch {
	case t.Operator != "":
		return "operator " + t.Operator + " as " + string(t.As)
	case t.Node != "":
		return "node " + t.Node + " of " + t.Environment
	case t.Role != "":
		return "role " + t.Role + " of " + t.Environment
	}
	return "any node of " + t.Environment
}

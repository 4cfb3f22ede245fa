package change

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/store"
)

// Sealer is what certifies the recipients of secrets: serve, and the operator's own copy of the fleet's CAs.
type Sealer struct {
	Bundle []byte // PEM
	// Sealing asks serve. It is not called where a certified recipient is stored, nor in a dry run.
	Sealing func(context.Context, join.SealingRequest) (join.SealingAnswer, error)
	DryRun  bool
}

// SetSecret makes the next generation of live data with one secret set.
func SetSecret(ctx context.Context, s *store.Store, ref environments.Ref, e DataEdit, value string, sealer Sealer, a Author) (Data, error) {
	if len(value) > secrets.MaxBytes {
		return Data{}, fmt.Errorf("cannot set secret %s: it is %d bytes, and %d is the most", e.Key, len(value), secrets.MaxBytes)
	}
	if value == "" {
		return Data{}, fmt.Errorf("cannot set secret %s: standard input is empty\nrun for example `pulley secret set %s -e %s < FILE`", e.Key, e.Key, ref)
	}
	f, err := Find(ctx, s, ref, e.Scope)
	if err != nil {
		return Data{}, err
	}
	role, err := roleOf(f, e)
	if err != nil {
		return Data{}, err
	}
	recipient, err := sealer.recipient(ctx, s, ref, role)
	if err != nil {
		return Data{}, fmt.Errorf("cannot set secret %s: %w", e.Key, err)
	}
	text, err := secrets.Seal(recipient, secrets.Place{Environment: ref.String(), Layer: e.layer(), Key: e.Key}, value)
	if err != nil {
		return Data{}, err
	}
	quoted := "'" + text + "'" // a ciphertext has no quotes
	e.Value, e.secret = &quoted, true
	return EditData(ctx, s, ref, e, a)
}

// roleOf returns the role whose nodes may read a secret; "" is all nodes of the environment.
func roleOf(f store.FleetState, e DataEdit) (string, error) {
	if e.Scope.Node == "" {
		return e.Scope.Role, nil
	}
	role := f.RoleOf(e.Scope.Node)
	if role == "" {
		return "", fmt.Errorf("cannot set secret %s: node %s has no role, and a node's secret is encrypted to its role\nadd it to a role in the environment file", e.Key, e.Scope.Node)
	}
	return role, nil
}

// recipient returns the newest recipient of a scope, which a CA of the fleet certified.
func (x Sealer) recipient(ctx context.Context, s *store.Store, ref environments.Ref, role string) (string, error) {
	have, _, err := s.Identities.Recipients(ctx, ref, role)
	if err != nil {
		return "", err
	}
	if len(have.Recipients) > 0 {
		newest := have.Recipients[0]
		if x.check(ref, role, newest.Recipient, newest.Certificate) == nil {
			return newest.Recipient, nil
		}
	}
	if x.DryRun {
		_, recipient, err := secrets.NewIdentity() // nothing is stored
		return recipient, err
	}
	answer, err := x.Sealing(ctx, join.SealingRequest{Environment: ref.String(), Role: role})
	if err != nil {
		return "", err
	}
	return answer.Recipient, x.check(ref, role, answer.Recipient, answer.Certificate)
}

func (x Sealer) check(ref environments.Ref, role, recipient, certificate string) error {
	return pki.CheckRecipient(x.Bundle, []byte(certificate), ref.String(), store.RecipientScope(role), recipient)
}

// Secret is one secret of live data, without its value.
type Secret struct {
	Layer     hieradata.Layer `json:"layer"`
	Key       string          `json:"key"`
	Recipient string          `json:"recipient"`      // its id in the ciphertext
	Role      string          `json:"role"`           // whose nodes decrypt it; "" is all nodes of the environment
	Current   bool            `json:"current"`        // false: encrypted to an older recipient, or to an unknown one
	Since     time.Time       `json:"since,omitzero"` // of the recipient
}

// ListSecrets lists the secrets of the environment's current live data.
func ListSecrets(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope, common bool) ([]Secret, error) {
	f, err := Find(ctx, s, ref, scope)
	if err != nil {
		return nil, err
	}
	values, err := ReadData(ctx, s, ref, scope, common, "")
	if err != nil {
		return nil, err
	}
	list, known := []Secret{}, map[string]store.Recipients{}
	for _, v := range values {
		id, _, is := v.Value.Secret()
		if !is {
			continue
		}
		one := Secret{Layer: v.Layer, Key: v.Key, Recipient: id, Role: roleOfLayer(f, v.Layer)}
		have, read := known[one.Role]
		if !read {
			if have, _, err = s.Identities.Recipients(ctx, ref, one.Role); err != nil {
				return nil, err
			}
			known[one.Role] = have
		}
		for i, r := range have.Recipients {
			if secrets.ID(r.Recipient) == id {
				one.Current, one.Since = i == 0, r.At
			}
		}
		list = append(list, one)
	}
	return list, nil
}

func roleOfLayer(f store.FleetState, layer hieradata.Layer) string {
	switch kind, name, _ := strings.Cut(string(layer), "/"); kind {
	case "roles":
		return name
	case "nodes":
		return f.RoleOf(name)
	}
	return ""
}

// ErrNoCA means that a fleet has no CA that certifies recipients.
var ErrNoCA = errors.New("this connection has no certificate of a fleet's CA, which certifies who may read secrets\nsecure the fleet first: run `pulley serve --auth`, or log in with `pulley login`")

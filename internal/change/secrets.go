package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
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

// Rotation is a new recipient of a role's secrets, or of the environment's for role "".
type Rotation struct {
	Role string
	Lost bool // the former identities are lost: no secret is encrypted again
}

// Rotated is the result of a rotation.
type Rotated struct {
	store.Change
	Made       bool // secrets were encrypted again, and changed the data
	Generation agent.Generation
	Secrets    []Secret // of the scope
}

// maxSealing bounds the ciphertexts of one request to serve, in bytes.
const maxSealing = 32 << 10

// RotateSecrets makes a new recipient, and the next generation of live data with the secrets of the scope encrypted to
// it. After an interruption, the next call encrypts the rest again.
func RotateSecrets(ctx context.Context, s *store.Store, ref environments.Ref, r Rotation, sealer Sealer, a Author) (done Rotated, err error) {
	if done.Secrets, err = secretsOf(ctx, s, ref, r.Role); err != nil || sealer.DryRun {
		return done, err
	}
	f, err := Find(ctx, s, ref, Scope{Role: r.Role})
	if err == nil && a.Key == nil && !a.Unsigned && signers(f, Scope{}) {
		err = unsignedError("rotate the secrets of "+ref.String(), ref, "give --sign-key FILE")
	}
	if err != nil {
		return done, err
	}
	request := join.SealingRequest{Environment: ref.String(), Role: r.Role, Rotate: true, Lost: r.Lost}
	answer, err := sealer.Sealing(ctx, request)
	if err == nil {
		err = sealer.check(ref, r.Role, answer.Recipient, answer.Certificate)
	}
	if err != nil || r.Lost || len(done.Secrets) == 0 {
		return done, err
	}
	err = Retry(func() error { return sealAgain(ctx, s, ref, r.Role, sealer, a, &done) })
	return done, err
}

// secretsOf lists the secrets whose readers are the nodes of a role, or of the environment for role "".
func secretsOf(ctx context.Context, s *store.Store, ref environments.Ref, role string) ([]Secret, error) {
	all, err := ListSecrets(ctx, s, ref, Scope{}, false)
	return slices.DeleteFunc(all, func(one Secret) bool { return one.Role != role }), err
}

func sealAgain(ctx context.Context, s *store.Store, ref environments.Ref, role string, sealer Sealer, a Author, done *Rotated) error {
	f, err := Find(ctx, s, ref, Scope{Role: role})
	if err != nil {
		return err
	}
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return err
	}
	changed := map[hieradata.Layer][]byte{}
	for _, layer := range data.SortedLayers() {
		if roleOfLayer(f, layer) != role {
			continue
		}
		text, err := s.Targets.Layer(ctx, ref.String(), data.Layers[layer])
		if err != nil {
			return err
		}
		after, err := sealer.layer(ctx, ref, role, layer, text)
		if err != nil {
			return err
		}
		if after != nil {
			changed[layer] = after
		}
	}
	if len(changed) == 0 {
		return nil
	}
	c, err := s.Targets.ChangeData(ctx, ref, f.Desires, data, changed, a.store())
	if err == nil {
		done.Change, done.Made, done.Generation = c, true, c.After.Data
	}
	return err
}

// layer returns a layer with its secrets encrypted to the newest recipient; nil if it has none.
func (x Sealer) layer(ctx context.Context, ref environments.Ref, role string, layer hieradata.Layer, text []byte) ([]byte, error) {
	found, err := hieradata.Secrets(text)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	var batch []join.Sealed
	size := 0
	send := func() error {
		answer, err := x.Sealing(ctx, join.SealingRequest{Environment: ref.String(), Role: role, Secrets: batch})
		if err == nil && len(answer.Secrets) != len(batch) {
			err = errors.New("cannot encrypt secrets again: the answer of pulley serve lacks some")
		}
		if err != nil {
			return err
		}
		for i, one := range answer.Secrets {
			if text, err = hieradata.Set(text, batch[i].Key, "'"+one.Text+"'"); err != nil {
				return err
			}
		}
		batch, size = nil, 0
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		if size+len(found[key]) > maxSealing && len(batch) > 0 {
			if err := send(); err != nil {
				return nil, err
			}
		}
		batch, size = append(batch, join.Sealed{Layer: string(layer), Key: key, Text: found[key]}), size+len(found[key])
	}
	err = send()
	return text, err
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

package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/promotion"
	"pulley/internal/secrets"
)

// Sealer is what certifies the recipients of secrets: serve, and the operator's own copy of the fleet's CAs.
type Sealer struct {
	Bundle []byte // PEM
	// Sealing asks serve. It is not called where a certified recipient is stored, nor in a dry run.
	Sealing func(context.Context, join.SealingRequest) (join.SealingAnswer, error)
	// Reveal requests plaintexts from serve.
	Reveal func(context.Context, join.RevealRequest) ([][]byte, error)
	DryRun bool
}

// SetSecret makes the next generation of live data with one secret set in the layer of e.
func SetSecret(ctx context.Context, s *etcd.DB, ref model.Ref, e LayerEdit, key, value string, sealer Sealer, a promotion.Author) (Edited, error) {
	if len(value) > secrets.MaxBytes {
		return Edited{}, fmt.Errorf("cannot set secret %s: it is %d bytes, and %d is the most", key, len(value), secrets.MaxBytes)
	}
	if !utf8.ValidString(value) {
		return Edited{}, fmt.Errorf("cannot set secret %s: it is not UTF-8 text\nencode binary data, for example with base64, and decode it in the manifest", key)
	}
	if value == "" {
		return Edited{}, fmt.Errorf("cannot set secret %s: standard input is empty\nrun for example `pulley secret set %s -e %s < FILE`", key, key, ref)
	}
	f, err := promotion.Find(ctx, s, ref, e.Scope)
	if err != nil {
		return Edited{}, err
	}
	role, err := roleOf(f, e, key)
	if err != nil {
		return Edited{}, err
	}
	done, err := again(func() (Edited, error) {
		recipient, to, err := sealer.recipient(ctx, s, ref, role)
		if err != nil {
			return Edited{}, fmt.Errorf("cannot set secret %s: %w", key, err)
		}
		text, err := secrets.Seal(recipient, secrets.Place{Environment: ref.String(), Layer: e.Layer(), Key: key}, value)
		if err != nil {
			return Edited{}, err
		}
		quoted := "'" + text + "'" // a ciphertext has no quotes
		sealed := e
		sealed.Keys, sealed.secret = []KeyEdit{{key, &quoted}}, &to
		return editLayer(ctx, s, ref, sealed, a)
	})
	done.WasPlain = slices.ContainsFunc(done.Differences, func(d Difference) bool {
		return d.From != nil && !d.From.IsSecret()
	})
	return done, err
}

// RevealSecrets replaces the secrets among values by their plaintexts.
func RevealSecrets(ctx context.Context, s *etcd.DB, ref model.Ref, values []Value, sealer Sealer) error {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if err != nil {
		return err
	}
	all, _, err := targets.In(s).AllRecipients(ctx, ref)
	if err != nil {
		return err
	}
	owner, of := owners(all), map[string][]*Value{} // by role
	for i, v := range values {
		if v.Secret != "" {
			role, known := owner[v.Secret]
			if !known {
				role, _ = roleOfLayer(f, v.Layer)
			}
			of[role] = append(of[role], &values[i])
		}
	}
	for _, role := range slices.Sorted(maps.Keys(of)) {
		for len(of[role]) > 0 {
			request, n, size := join.RevealRequest{Environment: ref.String(), Role: role}, 0, 0
			for _, v := range of[role] {
				text := v.Value.Plain()
				if size += len(text); n > 0 && size > maxSealing {
					break
				}
				request.Secrets = append(request.Secrets, join.Sealed{Layer: string(v.Layer), Key: v.Key, Text: text})
				n++
			}
			var plaintexts [][]byte
			err := patiently(ctx, func() (err error) {
				plaintexts, err = sealer.Reveal(ctx, request)
				return err
			})
			if err != nil {
				return fmt.Errorf("cannot show the secrets of %s: %w", ref, err)
			}
			for i, plain := range plaintexts {
				v := of[role][i]
				v.Value = hieradata.Text(string(plain))
				v.Text = onLine(v.Value)
			}
			of[role] = of[role][n:]
		}
	}
	return nil
}

// HideSecrets removes the ciphertexts of secrets from values.
func HideSecrets(values []Value) {
	for i, v := range values {
		if v.Secret != "" {
			values[i].Value = hieradata.Value{}
		}
	}
}

// roleOf returns the role whose nodes may read a secret; "" is all nodes of the environment.
func roleOf(f fleet.FleetState, e LayerEdit, key string) (string, error) {
	if e.Scope.Node == "" {
		return e.Scope.Role, nil
	}
	role := f.RoleOf(e.Scope.Node)
	if role == "" {
		return "", fmt.Errorf("cannot set secret %s: node %s has no role, and a node's secret is encrypted to its role\nadd it to a role in the environment file", key, e.Scope.Node)
	}
	return role, nil
}

// recipient returns the newest recipient of a scope, which a CA of the fleet certified, and the recipients in etcd, which guard its use.
func (x Sealer) recipient(ctx context.Context, s *etcd.DB, ref model.Ref, role string) (string, targets.Recipients, error) {
	have, err := targets.In(s).Recipients(ctx, ref, role)
	if err != nil {
		return "", have, err
	}
	if len(have.Recipients) > 0 {
		newest := have.Recipients[0]
		if x.check(ref, role, newest.Recipient, newest.Certificate) == nil {
			return newest.Recipient, have, nil
		}
	}
	if x.DryRun {
		_, recipient, err := secrets.NewIdentity() // nothing is stored
		return recipient, have, err
	}
	answer, err := x.Sealing(ctx, join.SealingRequest{Environment: ref.String(), Role: role})
	if err == nil {
		err = x.check(ref, role, answer.Recipient, answer.Certificate)
	}
	if err == nil {
		have, err = targets.In(s).Recipients(ctx, ref, role)
	}
	if err == nil && (len(have.Recipients) == 0 || have.Recipients[0].Recipient != answer.Recipient) { // rotated since
		err = etcd.ErrConflict
	}
	return answer.Recipient, have, err
}

func (x Sealer) check(ref model.Ref, role, recipient, certificate string) error {
	return pki.CheckRecipient(x.Bundle, []byte(certificate), ref.String(), targets.RecipientScope(role), recipient)
}

// Rotation is a new recipient of a role's secrets, or of the environment's for role "".
type Rotation struct {
	Role string
	Lost bool // the former identities are lost: no secret is encrypted again
}

// Rotated is the result of a rotation.
type Rotated struct {
	targets.Change
	Made       bool // secrets were encrypted again, and changed the data
	Generation model.Generation
	Secrets    []Secret // of the scope
	LeftOut    []Secret // of them, or of former readers: no node decrypts them, or none sees their layer
}

// maxSealing bounds the ciphertexts of one request to serve, in bytes.
const maxSealing = 32 << 10

// RotateSecrets makes a new recipient, and the next generation of live data with the secrets of the scope encrypted to
// it. It refuses what it cannot finish before serve stores the recipient. After an interruption, the next call encrypts the rest again.
func RotateSecrets(ctx context.Context, s *etcd.DB, ref model.Ref, r Rotation, sealer Sealer, a promotion.Author) (done Rotated, err error) {
	if done.Secrets, done.LeftOut, err = secretsOf(ctx, s, ref, r); err != nil {
		return done, err
	}
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{Role: r.Role})
	if err == nil && len(done.Secrets) > 0 && !r.Lost {
		err = mayRotate(f, ref, a)
	}
	if err != nil || sealer.DryRun {
		return done, err
	}
	if a.Why == "" { // a rollback would undo it unnoticed
		a.Why = "rotates the secrets of " + promotion.Scope{Role: r.Role}.String()
	}
	request := join.SealingRequest{Environment: ref.String(), Role: r.Role, Rotate: true, Lost: r.Lost}
	var answer join.SealingAnswer
	err = patiently(ctx, func() (err error) {
		answer, err = sealer.Sealing(ctx, request)
		return err
	})
	if err == nil {
		err = sealer.check(ref, r.Role, answer.Recipient, answer.Certificate)
	}
	if err != nil || r.Lost || len(done.Secrets) == 0 {
		return done, err
	}
	err = promotion.Retry(func() error { return sealAgain(ctx, s, ref, r.Role, sealer, a, &done) })
	return done, err
}

// mayRotate refuses what the change of the data would refuse.
func mayRotate(f fleet.FleetState, ref model.Ref, a promotion.Author) error {
	if a.Key == nil && !a.Unsigned && promotion.Signers(f, promotion.Scope{}) {
		return promotion.UnsignedError("rotate the secrets of "+ref.String(), ref, "give --sign-key FILE")
	}
	if err := f.Desires.MayChange(a.Signing()); err != nil {
		return fmt.Errorf("cannot rotate the secrets of %s: %w", ref, err)
	}
	return nil
}

// RotationsAfter returns the rotations that a removed node makes necessary: of each scope whose identities it received and
// that has a recipient older than the removal.
func RotationsAfter(ctx context.Context, s *etcd.DB, ref model.Ref, i *access.Identity) (all []Rotation, err error) {
	if i == nil {
		return nil, nil
	}
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if errors.Is(err, etcd.ErrNotFound) { // no environment, no secrets
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	have, _, err := targets.In(s).AllRecipients(ctx, ref)
	if err != nil {
		return nil, err
	}
	return PendingRotations(f.Spec, have, *i), nil
}

// PendingRotations returns the rotations of the scopes whose newest recipient is older than the removal of a node, or of all that it may read if
// it is not removed yet.
func PendingRotations(spec *environments.Environment, have map[string]targets.Recipients, i access.Identity) (all []Rotation) {
	for _, role := range slices.Compact([]string{"", i.Role}) {
		r := have[role].Recipients
		if _, known := spec.Role(role); role != "" && !known {
			continue
		}
		if len(r) > 0 && (i.Removed == nil || r[0].At.Before(i.Removed.At)) {
			all = append(all, Rotation{Role: role})
		}
	}
	return all
}

// secretsOf lists the secrets that a rotation encrypts again, or forgets, and those that it leaves out: of another scope's recipient, of an
// unknown one, or of a node in no list.
func secretsOf(ctx context.Context, s *etcd.DB, ref model.Ref, r Rotation) (its, leftOut []Secret, err error) {
	all, err := ListSecrets(ctx, s, ref, "")
	for _, one := range all {
		switch {
		case one.Role == r.Role && !one.NoNode && (r.Lost || !one.Since.IsZero()):
			its = append(its, one)
		case one.Role == r.Role, one.owner != nil && *one.owner == r.Role:
			leftOut = append(leftOut, one)
		}
	}
	return its, leftOut, err
}

func sealAgain(ctx context.Context, s *etcd.DB, ref model.Ref, role string, sealer Sealer, a promotion.Author, done *Rotated) error {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{Role: role})
	if err != nil {
		return err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return err
	}
	to, err := targets.In(s).Recipients(ctx, ref, role)
	if err != nil {
		return err
	}
	data.Encrypted(to)
	ids := owners(map[string]targets.Recipients{role: to})
	changed, all := map[hieradata.Layer][]byte{}, []join.Sealed{}
	for _, layer := range data.SortedLayers() {
		if its, is := roleOfLayer(f, layer); !is || its != role {
			continue
		}
		text, err := targets.In(s).Layer(ctx, ref.String(), data.Layers[layer])
		if err != nil {
			return err
		}
		found, err := hieradata.Secrets(text)
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(found)) {
			id, _, _ := hieradata.ParseSecret(found[key])
			if _, its := ids[id]; its {
				changed[layer], all = text, append(all, join.Sealed{Layer: string(layer), Key: key, Text: found[key]})
			}
		}
	}
	if all, err = sealer.again(ctx, ref, role, all); err != nil {
		return err
	}
	for _, one := range all {
		layer := hieradata.Layer(one.Layer)
		if changed[layer], err = hieradata.Set(changed[layer], one.Key, "'"+one.Text+"'"); err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		return nil
	}
	c, err := targets.In(s).ChangeData(ctx, ref, f.Desires, data, changed, a.Signing())
	if err == nil {
		done.Change, done.Made, done.Generation = c, true, c.After.Data
	}
	return err
}

// servePatience bounds the wait for serve, which limits the requests of each operator.
const servePatience = 10 * time.Minute

// patiently repeats a request after the pause that serve asks for, if it was one too many.
func patiently(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, servePatience)
	defer cancel()
	for {
		err := do()
		var away *join.UnreachableError
		if !errors.As(err, &away) || !away.TooOften || away.After == 0 {
			return err
		}
		if ends, _ := ctx.Deadline(); time.Until(ends) < away.After {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(away.After):
		}
	}
}

// again returns secrets encrypted to the newest recipient of a role. Serve refuses a secret that was set at another place.
func (x Sealer) again(ctx context.Context, ref model.Ref, role string, all []join.Sealed) (done []join.Sealed, err error) {
	for len(all) > 0 {
		n, size := 0, 0
		for n < len(all) && (n == 0 || size+len(all[n].Text) <= maxSealing) {
			size += len(all[n].Text)
			n++
		}
		var answer join.SealingAnswer
		err := patiently(ctx, func() (err error) {
			answer, err = x.Sealing(ctx, join.SealingRequest{Environment: ref.String(), Role: role, Secrets: all[:n]})
			return err
		})
		if err == nil && len(answer.Secrets) != n {
			err = errors.New("cannot encrypt secrets again: the answer of pulley serve lacks some")
		}
		if err != nil {
			return nil, err
		}
		for i, one := range answer.Secrets {
			done = append(done, join.Sealed{Layer: all[i].Layer, Key: all[i].Key, Text: one.Text})
		}
		all = all[n:]
	}
	return done, nil
}

// guardRecipients reads all recipients of an environment. The next generation, which takes secrets from elsewhere, conflicts with their change.
func guardRecipients(ctx context.Context, s *etcd.DB, ref model.Ref, data *targets.Data) (map[string]targets.Recipients, error) {
	all, _, err := targets.In(s).AllRecipients(ctx, ref)
	for _, to := range all {
		data.Encrypted(to)
	}
	return all, err
}

// importedSecrets refuses secrets of a folder that the nodes of their layers cannot decrypt. A dry run does not ask serve.
func importedSecrets(ctx context.Context, ref model.Ref, f fleet.FleetState, known map[string]targets.Recipients, diffs []Difference, sealer func() (Sealer, error)) error {
	if len(diffs) == 0 {
		return nil
	}
	owner := owners(known)
	of, problems := map[string][]join.Sealed{}, []error{} // by role
	for _, d := range diffs {
		role, is := roleOfLayer(f, d.Layer)
		switch its, known := owner[d.ToSecret]; {
		case !is:
			problems = append(problems, notHere(ref, d.Layer, d.Key, "the node of this layer has no role"))
		case !known:
			problems = append(problems, notHere(ref, d.Layer, d.Key, "it is of another environment, or its identity is lost"))
		case its != role:
			problems = append(problems, notHere(ref, d.Layer, d.Key, "it is encrypted to "+readersOf(its)+", and "+readersOf(role)+" read this layer"))
		default:
			of[role] = append(of[role], join.Sealed{Layer: string(d.Layer), Key: d.Key, Text: d.To.Plain()})
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	x, err := sealer()
	if err != nil || x.DryRun {
		return err
	}
	for _, role := range slices.Sorted(maps.Keys(of)) {
		_, err := x.again(ctx, ref, role, of[role])
		var refused *join.RefusedError
		if errors.As(err, &refused) && refused.Reason == join.BadSecret {
			i := slices.IndexFunc(of[role], func(one join.Sealed) bool {
				return one.Key == refused.Params.Claimed && one.Layer == refused.Params.Layer
			})
			if i >= 0 {
				return notHere(ref, hieradata.Layer(of[role][i].Layer), refused.Params.Claimed, "it was set as another key or in another layer, or is damaged")
			}
		}
		if err != nil {
			return fmt.Errorf("cannot import the secrets of %s: %w", ref, err)
		}
	}
	return nil
}

func notHere(ref model.Ref, layer hieradata.Layer, key, why string) error {
	return fmt.Errorf("cannot import secret %s of layer %s: %s\nremove it from %s and import again; then run `pulley secret set %s -e %s%s`", key, layer, why, layer.File(), key, ref, layer.Flags())
}

func readersOf(role string) string {
	if role == "" {
		return "all nodes"
	}
	return "nodes of role " + role
}

// Secret is one secret of live data, without its value.
type Secret struct {
	Layer     hieradata.Layer `json:"layer"`
	Key       string          `json:"key"`
	Recipient string          `json:"recipient"`         // its id in the ciphertext
	Role      string          `json:"role"`              // whose nodes decrypt it; "" is all nodes of the environment
	NoNode    bool            `json:"no_node,omitempty"` // its layer is of a node without a role here
	Current   bool            `json:"current"`           // false: encrypted to an older recipient, or to an unknown one
	Since     time.Time       `json:"since,omitzero"`    // of the recipient

	owner *string // the role of the recipient; nil for an unknown one
}

// ListSecrets lists the secrets of the environment's current live data.
func ListSecrets(ctx context.Context, s *etcd.DB, ref model.Ref, only hieradata.Layer) ([]Secret, error) {
	f, err := findLayer(ctx, s, ref, scopeOf(only))
	if err != nil {
		return nil, err
	}
	values, err := Read(ctx, s, ref, only, "")
	if err != nil {
		return nil, err
	}
	list := []Secret{}
	if !slices.ContainsFunc(values, func(v Value) bool { return v.Secret != "" }) {
		return list, nil
	}
	known, _, err := targets.In(s).AllRecipients(ctx, ref)
	if err != nil {
		return nil, err
	}
	owner := owners(known)
	for _, v := range values {
		id, _, is := v.Value.Secret()
		if !is {
			continue
		}
		one := Secret{Layer: v.Layer, Key: v.Key, Recipient: id}
		role, is := roleOfLayer(f, v.Layer)
		if of, known := owner[id]; known {
			one.owner = &of
			if !is {
				role = of
			}
		}
		one.Role, one.NoNode = role, !is
		for i, r := range known[one.Role].Recipients {
			if secrets.ID(r.Recipient) == id {
				one.Current, one.Since = i == 0 && is, r.At
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// owners returns the role of each recipient, by its id.
func owners(all map[string]targets.Recipients) map[string]string {
	owner := map[string]string{}
	for role, r := range all {
		for _, one := range r.Recipients {
			owner[secrets.ID(one.Recipient)] = role
		}
	}
	return owner
}

// roleOfLayer returns the role whose nodes read a layer, "" for all nodes. It returns false for the layer of a node that has no role here: a node
// that was removed, and that the environment does not name.
func roleOfLayer(f fleet.FleetState, layer hieradata.Layer) (role string, is bool) {
	switch kind, name, _ := strings.Cut(string(layer), "/"); kind {
	case "roles":
		return name, true
	case "nodes":
		role := f.RoleOf(name)
		return role, role != ""
	}
	return "", true
}

// ErrNoCA means that a fleet has no CA that certifies recipients.
var ErrNoCA = errors.New("this connection has no certificate of a fleet's CA, which certifies who may read secrets\nsecure the fleet first: run `pulley serve --auth`, or log in with `pulley login`")

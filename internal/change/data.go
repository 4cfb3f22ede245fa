package change

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/clip"
	"pulley/internal/content"
	"pulley/internal/fleet"
	"pulley/internal/store"
)

// DataEdit is a change of one key in one layer of live data.
type DataEdit struct {
	Scope  Scope
	Common bool // the lowest layer, without a scope
	Key    string
	Value  *string // YAML; nil removes the key

	Encrypted bool // the release's own hierarchy decrypts live data
	secret    bool // Value is the text of a secret
}

func (e DataEdit) layer() hieradata.Layer {
	switch {
	case e.Common:
		return hieradata.Common
	case e.Scope.Node != "":
		return hieradata.ForNode(e.Scope.Node)
	case e.Scope.Role != "":
		return hieradata.ForRole(e.Scope.Role)
	}
	return hieradata.Environment
}

func (e DataEdit) apply(layer []byte, ref environments.Ref) ([]byte, error) {
	if e.Value != nil && !e.Encrypted && hieradata.IsEncrypted(*e.Value) {
		return nil, fmt.Errorf("cannot set %s: the value is encrypted by eyaml, and Puppet does not decrypt live data\n"+
			"put it into a data file of the release; or give --encrypted, if a level with eyaml_lookup_key of its hiera.yaml reads live data", e.Key)
	}
	if v, has, err := hieradata.Get(layer, e.Key); err == nil && has && e.Value != nil && !e.secret {
		if _, _, is := v.Secret(); is {
			return nil, fmt.Errorf("cannot set %s: it is a secret in this layer\nrun `pulley secret set %s -e %s%s`; or remove it first with `pulley data unset %s -e %s%s`", e.Key, e.Key, ref, Flags(e.Scope), e.Key, ref, Flags(e.Scope))
		}
	}
	if e.Value != nil {
		return hieradata.Set(layer, e.Key, *e.Value)
	}
	rest, found, err := hieradata.Unset(layer, e.Key)
	if err == nil && !found {
		err = fmt.Errorf("cannot unset %s: this layer has no such key\nrun `pulley data get %s -e %s` to list the layers that have it", e.Key, e.Key, ref)
	}
	return rest, err
}

// maxEditBytes bounds a value in the history.
const maxEditBytes = 256

// edit describes the change of a layer.
func (e DataEdit) edit(before, after []byte) (*store.Edit, error) {
	edit := &store.Edit{Layer: e.layer(), Key: e.Key}
	for _, one := range []struct {
		layer []byte
		text  *string
	}{{before, &edit.From}, {after, &edit.To}} {
		v, has, err := hieradata.Get(one.layer, e.Key)
		if err != nil {
			return nil, err
		}
		if has {
			*one.text = clip.Line(shown(v), maxEditBytes)
		}
	}
	return edit, nil
}

// shown returns a value for people: of a secret, the id of its recipient.
func shown(v hieradata.Value) string {
	if recipient, _, is := v.Secret(); is {
		return "secret, encrypted to " + recipient
	}
	return v.String()
}

// Data is the result of a change of live data.
type Data struct {
	store.Change
	Layer      hieradata.Layer
	Made       bool             // false: the layer has this value and its signature already
	Same       bool             // the layer has this value already; a made change only adds the signature
	Generation agent.Generation // the one in force
	SignedBy   string           // fingerprint of the key if its signature existed already
	Signed     bool
	Concerns   []string // registered nodes that see the layer
	Shadows    Shadows
}

// Shadows lists the other places that define a changed key.
type Shadows struct {
	Hides    []hieradata.Layer // lower live layers
	HiddenBy []hieradata.Layer // higher live layers, for their nodes
	Release  string            // version of the release whose data has the key too
	Places   []string          // places in that release
	Merge    string            // merge behavior of Hiera; "" or first: the live value hides the others
	Err      error             // the list is missing or incomplete
}

// EditData makes the next generation of live data with one layer edited.
func EditData(ctx context.Context, s *store.Store, ref environments.Ref, e DataEdit, a Author) (done Data, err error) {
	err = Retry(func() error {
		done, err = editData(ctx, s, ref, e, a)
		return err
	})
	return done, err
}

func editData(ctx context.Context, s *store.Store, ref environments.Ref, e DataEdit, a Author) (Data, error) {
	f, err := Find(ctx, s, ref, e.Scope)
	if err != nil {
		return Data{}, err
	}
	layer := e.layer()
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return Data{}, err
	}
	var before []byte
	if digest, has := data.Layers[layer]; has {
		if before, err = s.Targets.Layer(ctx, ref.String(), digest); err != nil {
			return Data{}, err
		}
	}
	after, err := e.apply(before, ref)
	if err != nil {
		return Data{}, err
	}
	if len(after) > 0 && string(before) == string(after) {
		return signData(ctx, s, ref, f, data, layer, a)
	}
	if data.Edit, err = e.edit(before, after); err != nil {
		return Data{}, err
	}
	if a.Key == nil && !a.Unsigned && signers(f, Scope{}) {
		return Data{}, unsignedError("change the data of "+ref.String(), ref, "give --sign-key FILE")
	}
	c, err := s.Targets.ChangeData(ctx, ref, f.Desires, data, map[hieradata.Layer][]byte{layer: after}, a.store())
	if err != nil {
		return Data{}, err
	}
	done := Data{Change: c, Layer: layer, Made: true, Generation: c.After.Data, Signed: a.Key != nil}
	for _, node := range slices.SortedFunc(maps.Keys(f.Hosts), fleet.CompareNatural) {
		if in(e.Scope, f.Hosts[node]) {
			done.Concerns = append(done.Concerns, node)
		}
	}
	if _, has, err := hieradata.Get(after, e.Key); err == nil && has {
		done.Shadows = shadows(ctx, s, ref, f, data, layer, e.Key)
	}
	return done, nil
}

// signData adds a missing signature to existing data. A generation never changes, so it creates a signed new one.
func signData(ctx context.Context, s *store.Store, ref environments.Ref, f store.FleetState, data store.Data, layer hieradata.Layer, a Author) (Data, error) {
	done := Data{Layer: layer, Same: true, Generation: agent.Generation(data.Number), Change: store.Change{Kind: store.DataChange, After: f.Desires.Default}}
	if a.Key == nil {
		return done, nil
	}
	current, err := s.Targets.Generation(ctx, ref.String(), done.Generation)
	if err != nil {
		return done, err
	}
	if done.SignedBy = a.Key.Among(current.Signatures); done.SignedBy != "" {
		return done, nil
	}
	c, err := s.Targets.ChangeData(ctx, ref, f.Desires, data, nil, a.store())
	if err != nil {
		return done, err
	}
	done.Change, done.Made, done.Signed, done.Generation = c, true, true, c.After.Data
	return done, nil
}

// maxNodeLayers limits the layers of nodes that shadows reads.
const maxNodeLayers = 200

// shadows finds the other live layers and the places in the release that define a key.
func shadows(ctx context.Context, s *store.Store, ref environments.Ref, f store.FleetState, data store.Data, layer hieradata.Layer, key string) (found Shadows) {
	ofNodes := 0
	for _, other := range data.SortedLayers() {
		if !related(f, layer, other) {
			continue
		}
		if kind, _, _ := strings.Cut(string(other), "/"); kind == "nodes" {
			if ofNodes++; ofNodes > maxNodeLayers {
				continue
			}
		}
		b, err := s.Targets.Layer(ctx, ref.String(), data.Layers[other])
		if err != nil {
			found.Err = err
			return found
		}
		_, has, err := hieradata.Get(b, key)
		switch {
		case err != nil:
			found.Err = err
			return found
		case has && other.Rank() > layer.Rank():
			found.Hides = append(found.Hides, other)
		case has:
			found.HiddenBy = append(found.HiddenBy, other)
		}
	}
	if f.Desires.Default.Release == "" {
		return found
	}
	r, err := s.Releases.Get(ctx, f.Desires.Default.Release)
	if err != nil {
		found.Err = err
		return found
	}
	files, err := content.ReadFiles(ctx, s.Releases, r.Content, hieradata.WantFile)
	if err != nil {
		found.Err = err
		return found
	}
	places, merge, err := hieradata.Shadows(files, key)
	found.Release, found.Merge, found.Err = r.Version, merge, err
	for _, p := range places {
		if concerns(f.Spec, layer, p.File) {
			found.Places = append(found.Places, p.String())
		}
	}
	return found
}

// related reports whether some node may use both layers.
func related(f store.FleetState, a, b hieradata.Layer) bool {
	kindA, nameA, _ := strings.Cut(string(a), "/")
	kindB, nameB, _ := strings.Cut(string(b), "/")
	switch {
	case kindA == kindB:
		return false // of another node or role
	case kindA == "nodes" && kindB == "roles":
		return f.RoleOf(nameA) == nameB
	case kindA == "roles" && kindB == "nodes":
		return f.RoleOf(nameB) == nameA
	}
	return true
}

// concerns excludes hierarchy files of other roles: a value for controllers does not hide values in roles/compute.yaml.
func concerns(e *environments.Environment, layer hieradata.Layer, file string) bool {
	kind, name, _ := strings.Cut(string(layer), "/")
	role := name
	if n, err := environments.ParseNode(name); kind == "nodes" && err == nil {
		role = n.Role
	}
	if kind != "roles" && kind != "nodes" {
		return true
	}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	_, ofRole := e.Role(base)
	return !ofRole || base == role
}

// Value is one key of one layer.
type Value struct {
	Layer hieradata.Layer `json:"layer"`
	Key   string          `json:"key"`
	Value hieradata.Value `json:"value"`
	Text  string          `json:"-"` // YAML
}

// ReadData returns one key of the environment's current live data, or all keys if key is "". It reads all layers, or
// the layer of a scope.
func ReadData(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope, common bool, key string) ([]Value, error) {
	f, err := Find(ctx, s, ref, scope)
	if err != nil {
		return nil, err
	}
	only := DataEdit{Scope: scope, Common: common}.layer()
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return nil, err
	}
	values := []Value{}
	for _, layer := range data.SortedLayers() {
		if (scope != (Scope{}) || common) && layer != only {
			continue
		}
		b, err := s.Targets.Layer(ctx, ref.String(), data.Layers[layer])
		if err != nil {
			return nil, err
		}
		keys := []string{key}
		if key == "" {
			if keys, err = hieradata.Keys(b); err != nil {
				return nil, err
			}
		}
		for _, k := range keys {
			v, found, err := hieradata.Get(b, k)
			if err != nil {
				return nil, err
			}
			if found {
				values = append(values, Value{layer, k, v, shown(v)})
			}
		}
	}
	if key != "" && len(values) == 0 {
		return nil, fmt.Errorf("cannot find %s in the live data of %s: %w\nto look in the release's own data, run on a node: pulley-agent puppet -- lookup --explain %s", key, ref, store.ErrNotFound, key)
	}
	return values, nil
}

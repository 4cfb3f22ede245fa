// Package data owns changes of live data: edits of layers, generations, secrets, and folders of all layers, also for Puppet servers. It checks
// that a change is possible, makes it, and returns its effects. It must never print or prompt.
package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// Edited is the result of a change of live data.
type Edited struct {
	targets.Change
	Layers      []hieradata.Layer // that changed, or that should have
	Made        bool              // false: the layers have these values and the signature already
	Same        bool              // the layers have these values already; a made change only adds the signature
	Generation  model.Generation  // the one in force
	SignedBy    string            // fingerprint of the key if its signature existed already
	Signed      bool
	WasPlain    bool // a secret replaced a plain value
	Differences []Difference
	Concerns    []string // registered nodes that see one of the layers
	Served      int      // of Concerns: a Puppet server gives them the data
	Shadows     []Shadows
}

// EditLayer makes the next generation of live data with one layer edited. It returns a ChangedLayer if an edit of a whole layer was
// based on another state of it.
func EditLayer(ctx context.Context, s *etcd.DB, ref model.Ref, e LayerEdit, a promotion.Author) (done Edited, err error) {
	return again(func() (Edited, error) { return editLayer(ctx, s, ref, e, a) })
}

// again makes a generation, and begins again from the data in force if another operator changed it meanwhile.
func again(do func() (Edited, error)) (done Edited, err error) {
	err = promotion.Retry(func() error {
		done, err = do()
		return err
	})
	return done, err
}

// commit makes the next generation from data with these layers. With a.Rollout, it does not become the target.
func commit(ctx context.Context, s *etcd.DB, ref model.Ref, d targets.Desires, data targets.Data, layers map[hieradata.Layer][]byte, a promotion.Author) (targets.Change, error) {
	if !a.Rollout {
		return targets.In(s).ChangeData(ctx, ref, d, data, layers, a.Signing())
	}
	if d.Gate.Rollout != "" {
		return targets.Change{}, fmt.Errorf("cannot start a rollout in %s: %w", ref, &targets.CampaignError{ID: d.Gate.Rollout})
	}
	added, err := targets.In(s).AddData(ctx, ref, d, data, layers, a.Signing())
	return targets.Change{Kind: targets.DataChange, Before: d.Default, After: added.Overlay(d.Default)}, err
}

// findLayer is promotion.Find, which also accepts a role or a node that only has a layer: what a removed one left can be read and removed.
func findLayer(ctx context.Context, s *etcd.DB, ref model.Ref, scope promotion.Scope) (fleet.FleetState, error) {
	f, err := promotion.Find(ctx, s, ref, scope)
	if err == nil || f.Spec == nil {
		return f, err
	}
	data, unread := targets.In(s).Data(ctx, ref, f.Desires)
	if _, has := data.Layers[LayerEdit{Scope: scope}.Layer()]; unread == nil && has {
		return f, nil
	}
	return f, errors.Join(err, unread)
}

func editLayer(ctx context.Context, s *etcd.DB, ref model.Ref, e LayerEdit, a promotion.Author) (Edited, error) {
	f, err := findLayer(ctx, s, ref, e.Scope)
	if err != nil {
		return Edited{}, err
	}
	layer, of := e.Layer(), newLayering(ctx, s, ref, f)
	if err := of.check(layer); err != nil {
		return Edited{}, err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return Edited{}, err
	}
	if e.secret != nil {
		data.Encrypted(*e.secret)
	}
	before, err := readLayer(ctx, s, ref, data, layer)
	if err != nil {
		return Edited{}, err
	}
	after, diffs, err := e.apply(before, ref)
	if err != nil {
		return Edited{}, err
	}
	if e.Whole != nil && e.Whole.Opened != data.Layers[layer] && len(diffs) > 0 {
		return Edited{}, changedLayer(ctx, s, ref, data, layer, e.Whole.Opened, before, after)
	}
	if len(diffs) == 0 {
		done, err := signData(ctx, s, ref, f, data, layer, a)
		if err == nil {
			done.Concerns, err = of.concerned(done.Layers)
		}
		return done, err
	}
	done, err := of.write(data, map[hieradata.Layer][]byte{layer: after}, diffs, a)
	if err != nil {
		return done, err
	}
	done.Shadows = of.shadows(data, layer, diffs)
	return done, nil
}

// OpenLayer reads the layer of an edit in the form that EditLayer takes back, and the number of the generation in force.
func OpenLayer(ctx context.Context, s *etcd.DB, ref model.Ref, e LayerEdit) (LayerText, int64, error) {
	f, err := findLayer(ctx, s, ref, e.Scope)
	if err != nil {
		return LayerText{}, 0, err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return LayerText{}, 0, err
	}
	text, err := readLayer(ctx, s, ref, data, e.Layer())
	return LayerText{text, data.Layers[e.Layer()]}, data.Number, err
}

// readLayer reads a layer of a generation; nil if it has none.
func readLayer(ctx context.Context, s *etcd.DB, ref model.Ref, data targets.Data, layer hieradata.Layer) ([]byte, error) {
	digest, has := data.Layers[layer]
	if !has {
		return nil, nil
	}
	return targets.In(s).Layer(ctx, ref.String(), digest)
}

// write makes the next generation with these layers, which differ by diffs.
func (l *layering) write(data targets.Data, layers map[hieradata.Layer][]byte, diffs []Difference, a promotion.Author) (Edited, error) {
	ctx, s, ref, f := l.ctx, l.s, l.ref, l.f
	if a.Key == nil && !a.Unsigned && promotion.Signers(f, promotion.Scope{}) {
		return Edited{}, promotion.UnsignedError("change the data of "+ref.String(), ref, "give --sign-key FILE")
	}
	data.Edit = historyEdit(diffs)
	names := slices.SortedFunc(maps.Keys(layers), hieradata.CompareLayers)
	concerns, err := l.concerned(names)
	if err != nil {
		return Edited{}, err
	}
	if err := l.direct(names, concerns, a); err != nil {
		return Edited{}, err
	}
	c, err := commit(ctx, s, ref, f.Desires, data, layers, a)
	if err != nil {
		return Edited{}, err
	}
	done := Edited{Change: c, Layers: names, Made: true, Generation: c.After.Data, Signed: a.Key != nil, Differences: diffs, Concerns: concerns}
	for _, node := range concerns {
		if _, target, err := l.levels(node); err == nil && l.served[target.Release] {
			done.Served++
		}
	}
	return done, nil
}

// direct is direct for a change of layers. Nodes without a release have nothing to lose.
func (l *layering) direct(layers []hieradata.Layer, concerns []string, a promotion.Author) error {
	if a.Rollout {
		return nil
	}
	scope, changed := promotion.Scope{}, 0
	if len(layers) == 1 {
		scope = scopeOf(layers[0])
	}
	for _, node := range concerns {
		if _, target, err := l.levels(node); err == nil && target.Release != "" {
			changed++
		}
	}
	return promotion.Direct(l.f, l.ref, scope, changed, a, fmt.Sprintf("change the data of %s: it concerns", l.ref), "give --rollout")
}

// LayerNames names layers: "layer roles/web", "5 layers".
func LayerNames(layers []hieradata.Layer) string {
	switch len(layers) {
	case 1:
		return "layer " + string(layers[0])
	case 2, 3:
		var names []string
		for _, l := range layers {
			names = append(names, string(l))
		}
		return "layers " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d layers", len(layers))
}

// ChangedLayer is the error of an edit of a layer that somebody else changed after it was opened.
type ChangedLayer struct {
	Ref          model.Ref
	Layer        hieradata.Layer
	Number       int64  // of the generation in force
	By           string // author of that generation
	Theirs, Ours []Difference
}

// Error names the layer, and who changed the data last.
func (e *ChangedLayer) Error() string {
	return fmt.Sprintf("cannot change layer %s of %s: it changed after you opened it (data %d is by %s)", e.Layer, e.Ref, e.Number, e.By)
}

func changedLayer(ctx context.Context, s *etcd.DB, ref model.Ref, data targets.Data, layer hieradata.Layer, opened string, now, ours []byte) error {
	e := &ChangedLayer{Ref: ref, Layer: layer, Number: data.Number, By: data.By}
	var base []byte
	if opened != "" {
		var err error
		if base, err = targets.In(s).Layer(ctx, ref.String(), opened); err != nil {
			return err
		}
	}
	var err error
	if e.Theirs, err = differences(layer, base, now); err != nil {
		return err
	}
	if e.Ours, err = differences(layer, base, ours); err != nil {
		return err
	}
	return e
}

// signData adds a missing signature to existing data. A generation never changes, so it creates a signed new one.
func signData(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState, data targets.Data, layer hieradata.Layer, a promotion.Author) (Edited, error) {
	done := Edited{Same: true, Generation: model.Generation(data.Number), Change: targets.Change{Kind: targets.DataChange, After: f.Desires.Default}}
	if layer != "" {
		done.Layers = []hieradata.Layer{layer}
	}
	if a.Key == nil {
		return done, nil
	}
	current, err := targets.In(s).Generation(ctx, ref.String(), done.Generation)
	if err != nil {
		return done, err
	}
	if done.SignedBy = a.Key.Among(current.Signatures); done.SignedBy != "" {
		return done, nil
	}
	c, err := commit(ctx, s, ref, f.Desires, data, nil, a)
	if err != nil {
		return done, err
	}
	done.Change, done.Made, done.Signed, done.Generation = c, true, true, c.After.Data
	return done, nil
}

// Value is one key of one layer.
type Value struct {
	Layer hieradata.Layer `json:"layer"`
	Key   string          `json:"key"`
	Value hieradata.Value `json:"value"`
	// Secret is the id of the recipient of a secret, whose Value is its ciphertext.
	Secret string `json:"secret,omitempty"`
	Text   string `json:"-"` // YAML
}

// Read returns one key of the environment's current live data, or all keys if key is "". It reads all layers, or
// only the layer only, if it is not "".
func Read(ctx context.Context, s *etcd.DB, ref model.Ref, only hieradata.Layer, key string) ([]Value, error) {
	f, err := findLayer(ctx, s, ref, scopeOf(only))
	if err != nil {
		return nil, err
	}
	h, err := newLayering(ctx, s, ref, f).hierarchy(f.Desires.Default.Release)
	if err != nil {
		return nil, err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return nil, err
	}
	values := []Value{}
	for _, layer := range h.Sorted(data.SortedLayers()) {
		if only != "" && layer != only {
			continue
		}
		b, err := targets.In(s).Layer(ctx, ref.String(), data.Layers[layer])
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
				id, _, _ := v.Secret()
				values = append(values, Value{layer, k, v, id, onLine(v)})
			}
		}
	}
	if key != "" && len(values) == 0 {
		return nil, fmt.Errorf("cannot find %s in the live data of %s: %w\nto look in the release's own data: `pulley data lookup %s --node NODE -e %s`", key, ref, etcd.ErrNotFound, key, ref)
	}
	return values, nil
}

// Awaiting is as promotion.Awaiting, for the nodes that see a changed layer of live data: the target of all nodes changed.
func Awaiting(ref model.Ref, done Edited) fleet.Awaited {
	a := promotion.Awaiting(ref, done.Change)
	a.What = fmt.Sprintf("the change of data in %s of %s", LayerNames(done.Layers), ref)
	concerned := map[string]bool{}
	for _, node := range done.Concerns {
		concerned[node] = true
	}
	a.Has = func(f fleet.FleetState, n fleet.Node) bool {
		h, listed := f.Hosts[n.Node]
		// A node that joined after the change is not among the concerned ones.
		levels := hieradata.Hierarchy{}.Levels(h.Role, h.Node, "")
		return listed && (concerned[n.Node] || slices.ContainsFunc(done.Layers, levels.Has))
	}
	return a
}

package change

import (
	"context"
	"errors"
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
	"pulley/internal/store"
)

// DataEdit is a change of one layer of live data: of some of its keys, or of the whole layer.
type DataEdit struct {
	Scope  Scope
	Common bool // the lowest layer, without a scope
	// the layer of an attribute's value, without a scope
	Attribute hieradata.Layer

	Keys  []KeyEdit
	Whole *LayerText // instead of Keys

	Encrypted bool // the release's own hierarchy decrypts live data
	secret    bool // the values are texts of secrets
}

// KeyEdit is a change of one key.
type KeyEdit struct {
	Key   string
	Value *string // YAML; nil removes the key
}

// LayerText is a whole layer, as a person edited it.
type LayerText struct {
	Text   []byte
	Opened string // digest of the layer that the person opened; "" if there was none
}

// Layer returns the layer that the edit changes.
func (e DataEdit) Layer() hieradata.Layer {
	switch {
	case e.Common:
		return hieradata.Common
	case e.Attribute != "":
		return e.Attribute
	case e.Scope.Node != "":
		return hieradata.ForNode(e.Scope.Node)
	case e.Scope.Role != "":
		return hieradata.ForRole(e.Scope.Role)
	}
	return hieradata.Environment
}

// attributeOf returns the layer if it is an attribute's, else "".
func attributeOf(layer hieradata.Layer) hieradata.Layer {
	if _, _, ok := layer.Attribute(); ok {
		return layer
	}
	return ""
}

// scopeOf returns the scope whose nodes see a layer.
func scopeOf(layer hieradata.Layer) Scope {
	switch kind, name, _ := strings.Cut(string(layer), "/"); kind {
	case "roles":
		return Scope{Role: name}
	case "nodes":
		return Scope{Node: name}
	}
	return Scope{}
}

// flagsOf renders the flags that select a layer, for hints.
func flagsOf(layer hieradata.Layer) string {
	switch name, value, ok := layer.Attribute(); {
	case layer == hieradata.Common:
		return " --common"
	case ok:
		return " --attribute " + name + "=" + value
	}
	return Flags(scopeOf(layer))
}

// apply returns the layer after the edit, and what differs.
func (e DataEdit) apply(before []byte, ref environments.Ref) (after []byte, diffs []Difference, err error) {
	after = before
	if e.Whole != nil {
		if after, err = hieradata.Parse(e.Whole.Text); err != nil {
			return nil, nil, fmt.Errorf("cannot change layer %s of %s: %w", e.Layer(), ref, err)
		}
	}
	edited := map[string]bool{}
	for _, k := range e.Keys {
		if edited[k.Key] {
			return nil, nil, fmt.Errorf("cannot change %s: the key is given twice", k.Key)
		}
		edited[k.Key] = true
		if after, err = k.apply(after, ref); err != nil {
			return nil, nil, err
		}
	}
	if diffs, err = differences(e.Layer(), before, after); err != nil {
		return nil, nil, err
	}
	for _, d := range diffs {
		if err := e.check(d, ref); err != nil {
			return nil, nil, err
		}
	}
	return after, diffs, nil
}

func (k KeyEdit) apply(layer []byte, ref environments.Ref) ([]byte, error) {
	if k.Value != nil {
		return hieradata.Set(layer, k.Key, *k.Value)
	}
	rest, found, err := hieradata.Unset(layer, k.Key)
	if err == nil && !found {
		err = fmt.Errorf("cannot unset %s: this layer has no such key\nrun `pulley data get %s -e %s` to list the layers that have it", k.Key, k.Key, ref)
	}
	return rest, err
}

// check refuses values that no node can use, and plain values in the place of a secret.
func (e DataEdit) check(d Difference, ref environments.Ref) error {
	if d.To == nil || e.secret {
		return nil
	}
	if !e.Encrypted && hieradata.IsEncrypted(d.To.String()) {
		return fmt.Errorf("cannot set %s: the value is encrypted by eyaml, and Puppet does not decrypt live data\n"+
			"put it into a data file of the release; or give --encrypted, if a level with eyaml_lookup_key of its hiera.yaml reads live data", d.Key)
	}
	if d.ToSecret != "" {
		return fmt.Errorf("cannot set %s: the value is the text of a secret, which is valid only at its own place\nrun `pulley secret set %s -e %s%s`", d.Key, d.Key, ref, flagsOf(e.Layer()))
	}
	if d.To.ContainsSecret() {
		return fmt.Errorf("cannot set %s: a part of the value is the text of a secret, and nodes decrypt only whole values\ngive the secret its own key: `pulley secret set KEY -e %s%s`", d.Key, ref, flagsOf(e.Layer()))
	}
	if d.FromSecret != "" {
		return fmt.Errorf("cannot set %s: it is a secret in this layer\nrun `pulley secret set %s -e %s%s`; or remove it first with `pulley data unset %s -e %s%s`", d.Key, d.Key, ref, flagsOf(e.Layer()), d.Key, ref, flagsOf(e.Layer()))
	}
	return nil
}

// Difference is a key whose value differs between two states of a layer.
type Difference struct {
	Layer hieradata.Layer  `json:"layer"`
	Key   string           `json:"key"`
	From  *hieradata.Value `json:"from,omitempty"` // nil: the layer lacks the key
	To    *hieradata.Value `json:"to,omitempty"`
	// The ids of the recipients of secrets.
	FromSecret string `json:"from_secret,omitempty"`
	ToSecret   string `json:"to_secret,omitempty"`
}

func differences(layer hieradata.Layer, from, to []byte) (all []Difference, err error) {
	diffs, err := hieradata.Differences(from, to)
	for _, d := range diffs {
		one := Difference{Layer: layer, Key: d.Key, From: d.From, To: d.To}
		if d.From != nil {
			one.FromSecret, _, _ = d.From.Secret()
		}
		if d.To != nil {
			one.ToSecret, _, _ = d.To.Secret()
		}
		all = append(all, one)
	}
	return all, err
}

// secretChanged reports whether a secret differs from another one to the same recipient.
func (d Difference) secretChanged() bool { return d.ToSecret != "" && d.FromSecret == d.ToSecret }

// hidden returns the difference without ciphertexts.
func (d Difference) hidden() Difference {
	if d.FromSecret != "" {
		d.From = &hieradata.Value{}
	}
	if d.ToSecret != "" {
		d.To = &hieradata.Value{}
	}
	return d
}

// Lines returns the difference as YAML, with - before what goes and + before what comes. Of a secret it shows the recipient.
func (d Difference) Lines() (lines []string) {
	for _, one := range []struct {
		sign   string
		value  *hieradata.Value
		secret string
	}{{"-", d.From, d.FromSecret}, {"+", d.To, d.ToSecret}} {
		if one.value == nil {
			continue
		}
		text := one.value.String()
		switch {
		case one.secret != "" && one.sign == "+" && d.secretChanged():
			text = "changed " + secretTo(one.secret)
		case one.secret != "":
			text = secretTo(one.secret)
		}
		if one.value.IsBlock() {
			lines = append(lines, one.sign+" "+d.Key+":")
			for line := range strings.Lines(text) {
				lines = append(lines, one.sign+"   "+strings.TrimSuffix(line, "\n"))
			}
			continue
		}
		lines = append(lines, one.sign+" "+d.Key+": "+text)
	}
	return lines
}

// maxEditBytes bounds a value in the history.
const maxEditBytes = 256

// historyEdit describes differences for the history: the first one, and how many follow.
func historyEdit(diffs []Difference) *store.Edit {
	if len(diffs) == 0 {
		return nil
	}
	first := diffs[0]
	edit := &store.Edit{Layer: first.Layer, Key: first.Key, More: len(diffs) - 1}
	if first.From != nil {
		edit.From = clip.Line(onLine(*first.From), maxEditBytes)
	}
	if first.To != nil {
		edit.To = clip.Line(onLine(*first.To), maxEditBytes)
	}
	if first.secretChanged() {
		edit.To = "changed " + edit.To
	}
	return edit
}

// shown returns a value for people: of a secret, the id of its recipient.
func shown(v hieradata.Value) string {
	if recipient, _, is := v.Secret(); is {
		return secretTo(recipient)
	}
	return v.String()
}

func secretTo(recipient string) string { return "secret, encrypted to " + recipient }

// onLine is shown on one line: lists and mappings in flow style.
func onLine(v hieradata.Value) string {
	if !v.IsBlock() {
		return shown(v)
	}
	flow, err := v.MarshalJSON()
	if err != nil {
		return shown(v)
	}
	return string(flow)
}

// Data is the result of a change of live data.
type Data struct {
	store.Change
	Layers      []hieradata.Layer // that changed, or that should have
	Made        bool              // false: the layers have these values and the signature already
	Same        bool              // the layers have these values already; a made change only adds the signature
	Generation  agent.Generation  // the one in force
	SignedBy    string            // fingerprint of the key if its signature existed already
	Signed      bool
	WasPlain    bool // a secret replaced a plain value
	Differences []Difference
	Concerns    []string // registered nodes that see one of the layers
	Shadows     []Shadows
}

// Shadows lists the other places that define a changed key.
type Shadows struct {
	Key      string
	Hides    []hieradata.Layer // lower live layers
	HiddenBy []hieradata.Layer // higher live layers, for their nodes
	Release  string            // version of the release whose data has the key too
	Places   []string          // places in that release
	Merge    string            // merge behavior of Hiera; "" or first: the live value hides the others
	Err      error             // the list is missing or incomplete
}

// EditData makes the next generation of live data with one layer edited. It returns a ChangedLayer if an edit of a whole layer was
// based on another state of it.
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
	layer, of := e.Layer(), newLayering(ctx, s, ref, f)
	if err := of.check(layer); err != nil {
		return Data{}, err
	}
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return Data{}, err
	}
	before, err := readLayer(ctx, s, ref, data, layer)
	if err != nil {
		return Data{}, err
	}
	after, diffs, err := e.apply(before, ref)
	if err != nil {
		return Data{}, err
	}
	if e.Whole != nil && e.Whole.Opened != data.Layers[layer] && len(diffs) > 0 {
		return Data{}, changedLayer(ctx, s, ref, data, layer, e.Whole.Opened, before, after)
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

// OpenLayer reads the layer of an edit in the form that EditData takes back, and the number of the generation in force.
func OpenLayer(ctx context.Context, s *store.Store, ref environments.Ref, e DataEdit) (LayerText, int64, error) {
	f, err := Find(ctx, s, ref, e.Scope)
	if err != nil {
		return LayerText{}, 0, err
	}
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return LayerText{}, 0, err
	}
	text, err := readLayer(ctx, s, ref, data, e.Layer())
	return LayerText{text, data.Layers[e.Layer()]}, data.Number, err
}

// KeysOf reads a YAML file of keys and values.
func KeysOf(text []byte) (keys []KeyEdit, err error) {
	layer, err := hieradata.Parse(text)
	if err != nil {
		return nil, err
	}
	diffs, err := hieradata.Differences(nil, layer)
	for _, d := range diffs {
		value := d.To.String()
		keys = append(keys, KeyEdit{d.Key, &value})
	}
	if err == nil && len(keys) == 0 {
		err = errors.New("it has no keys")
	}
	return keys, err
}

// readLayer reads a layer of a generation; nil if it has none.
func readLayer(ctx context.Context, s *store.Store, ref environments.Ref, data store.Data, layer hieradata.Layer) ([]byte, error) {
	digest, has := data.Layers[layer]
	if !has {
		return nil, nil
	}
	return s.Targets.Layer(ctx, ref.String(), digest)
}

// write makes the next generation with these layers, which differ by diffs.
func (l *layering) write(data store.Data, layers map[hieradata.Layer][]byte, diffs []Difference, a Author) (Data, error) {
	ctx, s, ref, f := l.ctx, l.s, l.ref, l.f
	if a.Key == nil && !a.Unsigned && signers(f, Scope{}) {
		return Data{}, unsignedError("change the data of "+ref.String(), ref, "give --sign-key FILE")
	}
	data.Edit = historyEdit(diffs)
	names := slices.SortedFunc(maps.Keys(layers), hieradata.CompareLayers)
	concerns, err := l.concerned(names)
	if err != nil {
		return Data{}, err
	}
	c, err := s.Targets.ChangeData(ctx, ref, f.Desires, data, layers, a.store())
	if err != nil {
		return Data{}, err
	}
	return Data{Change: c, Layers: names, Made: true, Generation: c.After.Data, Signed: a.Key != nil, Differences: diffs, Concerns: concerns}, nil
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
	Ref          environments.Ref
	Layer        hieradata.Layer
	Number       int64  // of the generation in force
	By           string // author of that generation
	Theirs, Ours []Difference
}

// Error names the layer, and who changed the data last.
func (e *ChangedLayer) Error() string {
	return fmt.Sprintf("cannot change layer %s of %s: it changed after you opened it (data %d is by %s)", e.Layer, e.Ref, e.Number, e.By)
}

func changedLayer(ctx context.Context, s *store.Store, ref environments.Ref, data store.Data, layer hieradata.Layer, opened string, now, ours []byte) error {
	e := &ChangedLayer{Ref: ref, Layer: layer, Number: data.Number, By: data.By}
	var base []byte
	if opened != "" {
		var err error
		if base, err = s.Targets.Layer(ctx, ref.String(), opened); err != nil {
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
func signData(ctx context.Context, s *store.Store, ref environments.Ref, f store.FleetState, data store.Data, layer hieradata.Layer, a Author) (Data, error) {
	done := Data{Same: true, Generation: agent.Generation(data.Number), Change: store.Change{Kind: store.DataChange, After: f.Desires.Default}}
	if layer != "" {
		done.Layers = []hieradata.Layer{layer}
	}
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

// maxShadowKeys limits the changed keys for which shadows looks.
const maxShadowKeys = 50

// shadows finds the other live layers and the places in the release that define a key which a change of the layer set.
func (l *layering) shadows(data store.Data, layer hieradata.Layer, diffs []Difference) []Shadows {
	var found []Shadows
	for _, d := range diffs {
		if d.To != nil && len(found) < maxShadowKeys {
			found = append(found, Shadows{Key: d.Key})
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := l.liveShadows(data, layer, found)
	if err == nil {
		err = releaseShadows(l.ctx, l.s, l.f, layer, found)
	}
	if err != nil {
		found[0].Err = err
	}
	return found
}

func (l *layering) liveShadows(data store.Data, layer hieradata.Layer, found []Shadows) error {
	h, err := l.hierarchy(l.f.Desires.Default.Release)
	if err != nil {
		return err
	}
	ofNodes := 0
	for _, other := range h.Sorted(data.SortedLayers()) {
		if !l.related(layer, other) {
			continue
		}
		if kind, _, _ := strings.Cut(string(other), "/"); kind == "nodes" {
			if ofNodes++; ofNodes > maxNodeLayers {
				continue
			}
		}
		b, err := l.s.Targets.Layer(l.ctx, l.ref.String(), data.Layers[other])
		if err != nil {
			return err
		}
		for i := range found {
			_, has, err := hieradata.Get(b, found[i].Key)
			switch {
			case err != nil:
				return err
			case has && h.Rank(other) > h.Rank(layer):
				found[i].Hides = append(found[i].Hides, other)
			case has:
				found[i].HiddenBy = append(found[i].HiddenBy, other)
			}
		}
	}
	return nil
}

func releaseShadows(ctx context.Context, s *store.Store, f store.FleetState, layer hieradata.Layer, found []Shadows) error {
	if f.Desires.Default.Release == "" {
		return nil
	}
	r, err := s.Releases.Get(ctx, f.Desires.Default.Release)
	if err != nil {
		return err
	}
	files, err := content.ReadFiles(ctx, s.Releases, r.Content, hieradata.WantFile)
	if err != nil {
		return err
	}
	for i := range found {
		places, merge, err := hieradata.Shadows(files, found[i].Key)
		found[i].Release, found[i].Merge, found[i].Err = r.Version, merge, err
		for _, p := range places {
			if concerns(f.Spec, layer, p.File) {
				found[i].Places = append(found[i].Places, p.String())
			}
		}
	}
	return nil
}

// related reports whether some node may use both layers.
func (l *layering) related(a, b hieradata.Layer) bool {
	f := l.f
	kindA, nameA, _ := strings.Cut(string(a), "/")
	kindB, nameB, _ := strings.Cut(string(b), "/")
	_, _, attributeA := a.Attribute()
	_, _, attributeB := b.Attribute()
	switch {
	case kindA == kindB:
		return false // of another node or role, or another value
	case (attributeA || attributeB) && nameA != "" && nameB != "":
		return l.together(a, b)
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
	// Secret is the id of the recipient of a secret, whose Value is its ciphertext.
	Secret string `json:"secret,omitempty"`
	Text   string `json:"-"` // YAML
}

// ReadData returns one key of the environment's current live data, or all keys if key is "". It reads all layers, or
// only the layer only, if it is not "".
func ReadData(ctx context.Context, s *store.Store, ref environments.Ref, only hieradata.Layer, key string) ([]Value, error) {
	f, err := Find(ctx, s, ref, scopeOf(only))
	if err != nil {
		return nil, err
	}
	h, err := newLayering(ctx, s, ref, f).hierarchy(f.Desires.Default.Release)
	if err != nil {
		return nil, err
	}
	data, err := s.Targets.Data(ctx, ref, f.Desires)
	if err != nil {
		return nil, err
	}
	values := []Value{}
	for _, layer := range h.Sorted(data.SortedLayers()) {
		if only != "" && layer != only {
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
				id, _, _ := v.Secret()
				values = append(values, Value{layer, k, v, id, onLine(v)})
			}
		}
	}
	if key != "" && len(values) == 0 {
		return nil, fmt.Errorf("cannot find %s in the live data of %s: %w\nto look in the release's own data: `pulley data lookup %s --node NODE -e %s`", key, ref, store.ErrNotFound, key, ref)
	}
	return values, nil
}

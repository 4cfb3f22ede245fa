package data

import (
	"errors"
	"fmt"
	"strings"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// LayerEdit is a change of one layer of live data: of some of its keys, or of the whole layer.
type LayerEdit struct {
	Scope  promotion.Scope
	Common bool // the lowest layer, without a scope
	// the layer of an attribute's value, without a scope
	Attribute hieradata.Layer

	Keys  []KeyEdit
	Whole *LayerText // instead of Keys

	Encrypted bool                // the release's own hierarchy decrypts live data
	secret    *targets.Recipients // the values are texts of secrets for these
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
func (e LayerEdit) Layer() hieradata.Layer {
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
func scopeOf(layer hieradata.Layer) promotion.Scope {
	switch kind, name, _ := strings.Cut(string(layer), "/"); kind {
	case "roles":
		return promotion.Scope{Role: name}
	case "nodes":
		return promotion.Scope{Node: name}
	}
	return promotion.Scope{}
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

// apply returns the layer after the edit, and what differs.
func (e LayerEdit) apply(before []byte, ref model.Ref) (after []byte, diffs []Difference, err error) {
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

func (k KeyEdit) apply(layer []byte, ref model.Ref) ([]byte, error) {
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
func (e LayerEdit) check(d Difference, ref model.Ref) error {
	if d.To == nil || e.secret != nil {
		return nil
	}
	if !e.Encrypted && hieradata.IsEncrypted(d.To.String()) {
		return fmt.Errorf("cannot set %s: the value is encrypted by eyaml, and Puppet does not decrypt live data\n"+
			"put it into a data file of the release; or give --encrypted, if a level with eyaml_lookup_key of its hiera.yaml reads live data", d.Key)
	}
	if d.ToSecret != "" {
		return fmt.Errorf("cannot set %s: the value is the text of a secret, which is valid only at its own place\nrun `pulley secret set %s -e %s%s`", d.Key, d.Key, ref, e.Layer().Flags())
	}
	if d.To.ContainsSecret() {
		return fmt.Errorf("cannot set %s: a part of the value is the text of a secret, and nodes decrypt only whole values\ngive the secret its own key: `pulley secret set KEY -e %s%s`", d.Key, ref, e.Layer().Flags())
	}
	if d.FromSecret != "" {
		return fmt.Errorf("cannot set %s: it is a secret in this layer\nrun `pulley secret set %s -e %s%s`; or remove it first with `pulley data unset %s -e %s%s`", d.Key, d.Key, ref, e.Layer().Flags(), d.Key, ref, e.Layer().Flags())
	}
	return nil
}

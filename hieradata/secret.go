package hieradata

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The text of a secret: the id of its recipient in hexadecimal digits, and the ciphertext of package secrets in base64.
const (
	secretPrefix   = "PULLEY-SECRET["
	secretIDDigits = 16
	base64Digits   = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
)

// SecretText returns the value of live data that holds a secret.
func SecretText(recipient, ciphertext string) string {
	return secretPrefix + recipient + "," + ciphertext + "]"
}

// ParseSecret returns the parts of SecretText. ok is false for any other text.
func ParseSecret(text string) (recipient, ciphertext string, ok bool) {
	rest, begins := strings.CutPrefix(text, secretPrefix)
	rest, ends := strings.CutSuffix(rest, "]")
	recipient, ciphertext, _ = strings.Cut(rest, ",")
	if !begins || !ends || len(recipient) != secretIDDigits || strings.Trim(recipient, "0123456789abcdef") != "" || ciphertext == "" || strings.Trim(ciphertext, base64Digits) != "" {
		return "", "", false
	}
	return recipient, ciphertext, true
}

// SecretIDs returns the ids of the recipients of all secrets in the text of a layer, wherever they are in it. It parses nothing: a damaged
// layer shows what it uses, too.
func SecretIDs(layer []byte) (ids []string) {
	for _, rest := range bytes.Split(layer, []byte(secretPrefix))[1:] {
		if len(rest) >= secretIDDigits {
			ids = append(ids, string(rest[:secretIDDigits]))
		}
	}
	return ids
}

// Text returns a text as a value.
func Text(text string) Value { return Value{text} }

// Plain returns a text; "" for a value that is none.
func (v Value) Plain() string {
	text, _ := v.v.(string)
	return text
}

// Secret returns the parts of SecretText if the value is a secret.
func (v Value) Secret() (recipient, ciphertext string, ok bool) {
	return ParseSecret(v.Plain())
}

// IsSecret reports whether the value is a secret.
func (v Value) IsSecret() bool {
	_, _, is := v.Secret()
	return is
}

// ContainsSecret reports whether the value, or a part of it, is a secret.
func (v Value) ContainsSecret() bool {
	switch x := v.v.(type) {
	case []Value:
		return slices.ContainsFunc(x, Value.ContainsSecret)
	case mapping:
		return slices.ContainsFunc(x, func(e entry) bool { return e.value.ContainsSecret() })
	}
	return v.IsSecret()
}

// Secrets returns the secrets of a layer, by key.
func Secrets(layer []byte) (map[string]string, error) {
	if !strings.Contains(string(layer), secretPrefix) { // most layers
		return nil, nil
	}
	v, err := parseLayer(layer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	found := map[string]string{}
	for _, e := range v.v.(mapping) {
		if _, _, ok := e.value.Secret(); ok {
			found[e.key.keyText()] = e.value.v.(string)
		}
	}
	return found, nil
}

// Reveal returns a layer with secrets replaced by their plaintexts. Puppet receives each as a Sensitive, and Hiera
// interpolates nothing in it. elsewhere are the keys of secrets in all layers: options of this layer for such a key would
// hide those of the layer with the secret.
func Reveal(layer []byte, plaintexts map[string]string, elsewhere []string) ([]byte, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	m := v.v.(mapping)
	options, _ := m.find(lookupOptions)
	ofKeys, _ := options.v.(mapping)
	keys := slices.Collect(maps.Keys(plaintexts))
	for _, key := range elsewhere {
		if _, has := ofKeys.find(key); has && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return layer, nil
	}
	for _, key := range keys {
		if text, here := plaintexts[key]; here {
			literal := strings.ReplaceAll(text, "%{", "%{literal('%')}{")
			m = append(m.without(key), entry{Value{key}, Value{literal}})
		}
		one, _ := ofKeys.find(key)
		ofKey, _ := one.v.(mapping)
		ofKey = append(ofKey.without("convert_to"), entry{Value{"convert_to"}, Value{"Sensitive"}})
		if ofKey, err = sorted(ofKey); err != nil {
			return nil, err
		}
		ofKeys = append(ofKeys.without(key), entry{Value{key}, Value{ofKey}})
	}
	if ofKeys, err = sorted(ofKeys); err != nil {
		return nil, err
	}
	if m, err = sorted(append(m.without(lookupOptions), entry{Value{lookupOptions}, Value{ofKeys}})); err != nil {
		return nil, err
	}
	return canonicalLayer(m), nil
}

// WithoutSecrets returns a layer without the keys whose values are or contain secrets, and these keys.
func WithoutSecrets(layer []byte) (plain []byte, keys []string, err error) {
	if !strings.Contains(string(layer), secretPrefix) { // most layers
		return layer, nil, nil
	}
	v, err := parseLayer(layer)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	var kept mapping
	for _, e := range v.v.(mapping) {
		if e.value.ContainsSecret() {
			keys = append(keys, e.key.keyText())
		} else {
			kept = append(kept, e)
		}
	}
	return canonicalLayer(kept), keys, nil
}

package hieradata

import (
	"fmt"
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

// Secret returns the parts of SecretText if the value is a secret.
func (v Value) Secret() (recipient, ciphertext string, ok bool) {
	text, _ := v.v.(string)
	return ParseSecret(text)
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
// interpolates nothing in it.
func Reveal(layer []byte, plaintexts map[string]string) ([]byte, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	m := v.v.(mapping)
	options, _ := m.find(lookupOptions)
	ofKeys, _ := options.v.(mapping)
	for key, text := range plaintexts {
		literal := strings.ReplaceAll(text, "%{", "%{literal('%')}{")
		m = append(m.without(key), entry{Value{key}, Value{literal}})
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

package hieradata

import (
	"fmt"
	"regexp"
	"strings"
)

// secretForm is the text of an encrypted value: the id of its recipient, and the ciphertext of package secrets.
var secretForm = regexp.MustCompile(`^PULLEY-SECRET\[([0-9a-f]{16}),([A-Za-z0-9+/=]+)\]$`)

// secretPrefix begins every secret.
const secretPrefix = "PULLEY-SECRET["

// SecretText returns the value of live data that holds a secret.
func SecretText(recipient, ciphertext string) string {
	return secretPrefix + recipient + "," + ciphertext + "]"
}

// ParseSecret returns the parts of SecretText. ok is false for any other text.
func ParseSecret(text string) (recipient, ciphertext string, ok bool) {
	if !strings.HasPrefix(text, secretPrefix) {
		return "", "", false
	}
	m := secretForm.FindStringSubmatch(text)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
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

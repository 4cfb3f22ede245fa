package hieradata

import (
	"strings"
	"testing"
)

// Puppet must receive each secret as a Sensitive, as it was set, and keep the options of the layer.
func TestRevealMarksAsSensitive(t *testing.T) {
	t.Parallel()
	secret := SecretText("0123456789abcdef", "YWdl")
	layer := []byte("a: '" + secret + "'\nb: plain\nlookup_options: {a: {merge: deep}, b: {merge: unique}}\n")
	found, err := Secrets(layer)
	if err != nil || len(found) != 1 || found["a"] != secret {
		t.Fatalf("%v, %v", found, err)
	}
	got, err := Reveal(layer, map[string]string{"a": "50%{x}"}, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"a": `"50%{literal('%')}{x}"`, "b": "plain",
		"lookup_options": "a:\n  convert_to: Sensitive\n  merge: deep\nb:\n  merge: unique",
	} {
		if v, _, err := Get(got, key); err != nil || v.String() != want {
			t.Errorf("%s is %s, want %s (%v)", key, v, want, err)
		}
	}
	// Options of a stronger layer must not take the Sensitive of a weaker one away. Layers without such options stay as they are.
	for layer, want := range map[string]string{
		"lookup_options: {a: {merge: first}}\n":               "a:\n  convert_to: Sensitive\n  merge: first",
		"lookup_options: {a: {convert_to: String}, b: {}}\n":  "a:\n  convert_to: Sensitive\nb: {}",
		"b: 1\nlookup_options: {b: {merge: unique}} # kept\n": "b:\n  merge: unique",
	} {
		got, err := Reveal([]byte(layer), nil, []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		if v, _, err := Get(got, "lookup_options"); err != nil || v.String() != want || strings.Contains(layer, "kept") && string(got) != layer {
			t.Errorf("%q becomes %q (%v)", layer, got, err)
		}
	}
	for _, text := range []string{"", "PULLEY-SECRET[", "PULLEY-SECRET[]", "PULLEY-SECRET[0123456789abcdef,]", "PULLEY-SECRET[0123456789abcdeg,YWdl]", " " + secret, secret + " "} {
		if _, _, ok := ParseSecret(text); ok {
			t.Errorf("%q is taken for a secret", text)
		}
	}
}

// A Puppet server cannot decrypt secrets, and a catalog with a ciphertext in the place of a password would be applied.
func TestLayersForServersHaveNoSecrets(t *testing.T) {
	secret := SecretText("0123456789abcdef", "YWdl")
	layer, err := Parse([]byte("a: 1\nb: '" + secret + "'\nc: {d: ['" + secret + "']}\n"))
	if err != nil {
		t.Fatal(err)
	}
	plain, keys, err := WithoutSecrets(layer)
	if err != nil || string(plain) != "a: 1\n" || len(keys) != 2 || keys[0] != "b" || keys[1] != "c" {
		t.Errorf("%q without %q, %v", plain, keys, err)
	}
	if plain, keys, err := WithoutSecrets([]byte("a: 1\n")); err != nil || string(plain) != "a: 1\n" || keys != nil {
		t.Errorf("%q without %q, %v", plain, keys, err)
	}
}

package hieradata

import (
	"encoding/json"
	"reflect"
	"testing"
)

// A value that is stored as JSON must come back with its type: Puppet refuses a text in the place of an integer.
func TestValuesKeepTheirTypesInJSON(t *testing.T) {
	for _, text := range []string{
		`~`, `true`, `1`, `1.0`, `-0.5`, `1.0e+300`, `-9223372036854775808`, `"1"`, `"yes"`, `''`, `{}`, `[]`, `[a, {b: [~, "\x7f<\u2028é"]}]`, `{"1": 2, "": x}`,
	} {
		v, err := parseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var again Value
		if err := json.Unmarshal(stored, &again); err != nil || !reflect.DeepEqual(again, v) {
			t.Errorf("%s is stored as %s and read as %#v, want %#v (%v)", text, stored, again, v, err)
		}
	}
}

package environments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// format is the version of the stored form. A field that an older Pulley may not overlook needs a new one, and since
// unknown fields are refused, so does any other field.
const format = 1

// stored is the stored form: {"v":1,"name":"dev","stack":"t42","roles":[{"name":"web","cardinality":2,"flavor":"small"}]}.
type stored struct {
	Format int    `json:"v"`
	Name   string `json:"name"`
	Stack  string `json:"stack,omitempty"`
	Roles  []Role `json:"roles"`
}

// Encode returns the stored form of e, always the same bytes for the same environment. An environment that Parse would
// refuse is an error.
func Encode(e *Environment) ([]byte, error) {
	if err := valid(e); err != nil {
		return nil, fmt.Errorf("cannot store environment %s: %w", quoted(e.Name), err)
	}
	s := stored{Format: format, Name: e.Name, Stack: e.Stack, Roles: e.Roles}
	if s.Roles == nil {
		s.Roles = []Role{} // null would not be the same bytes
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return nil, fmt.Errorf("cannot store environment %s: %w", quoted(e.Name), err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// Decode reads what Encode writes. It refuses what a newer Pulley wrote, what is damaged, and what Parse would refuse.
func Decode(data []byte) (*Environment, error) {
	e, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read stored environment: %w", err)
	}
	return e, nil
}

func decode(data []byte) (*Environment, error) {
	var head struct {
		Format int `json:"v"`
	}
	// The version is read first, so that a newer form is called newer rather than damaged. Unlike a Decoder, Unmarshal also
	// refuses what follows the value.
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if head.Format > format {
		return nil, &Error{
			Problem: fmt.Sprintf("it was written by a newer Pulley (format %d, this one reads %d)", head.Format, format),
			Advice:  "use a newer Pulley here, too",
		}
	}
	if head.Format < 1 {
		return nil, errors.New("it is damaged: it has no format version")
	}
	var s stored
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	e := &Environment{Name: s.Name, Stack: s.Stack, Roles: s.Roles}
	if err := valid(e); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return e, nil
}

// valid returns everything that is wrong with e, as one error.
func valid(e *Environment) error {
	var problems Errors
	e.check(func(_ spot, flaw *Error) { problems = append(problems, flaw) })
	if len(problems) == 0 {
		return nil
	}
	return problems
}

package environments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// The versions of the stored form. A field that an older Pulley may not overlook needs a new one, and since unknown fields
// are refused, so does any other field. What the first form can say is written in it, so that it stays the same bytes.
const (
	formatRoles    = 1 // name, stack, and roles with a cardinality and a flavor
	formatMachines = 2 // all that says who makes machines, and how
)

// maxStored bounds the stored form: etcd takes 1.5 MiB in one request, and a change may have the old and the new one.
const maxStored = 512 << 10

// stored is the stored form: {"v":1,"name":"dev","stack":"t42","roles":[{"name":"web","cardinality":2,"flavor":"small"}]}.
type stored struct {
	Format   int               `json:"v"`
	Name     string            `json:"name"`
	Stack    string            `json:"stack,omitempty"`
	Provider Provider          `json:"provider,omitzero"`
	Flavors  map[string]string `json:"flavors,omitempty"`
	Images   map[string]string `json:"images,omitempty"`
	Networks map[string]string `json:"networks,omitempty"`
	Userdata Userdata          `json:"userdata,omitzero"`
	Roles    []Role            `json:"roles"`
}

// needs returns the version that can say all of e.
func (e *Environment) needs() int {
	rest := *e
	rest.Name, rest.Stack, rest.Roles = "", "", nil
	if rest.tidy(); !reflect.DeepEqual(rest, Environment{}) {
		return formatMachines
	}
	for _, r := range e.Roles {
		r.Name, r.Cardinality, r.Flavor = "", 0, ""
		if r.tidy(); !reflect.DeepEqual(r, Role{}) {
			return formatMachines
		}
	}
	return formatRoles
}

// Encode returns the stored form of e, always the same bytes for the same environment. An environment that Parse would
// refuse is an error.
func Encode(e *Environment) ([]byte, error) {
	err := valid(e)
	var data []byte
	if err == nil {
		data, err = e.bytes()
	}
	if err == nil {
		if flaw := sizeFlaw(len(data)); flaw != nil {
			err = flaw
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot store environment %s: %w", quoted(e.Name), err)
	}
	return data, nil
}

func (e *Environment) bytes() ([]byte, error) {
	s := stored{e.needs(), e.Name, e.Stack, e.Provider, e.Flavors, e.Images, e.Networks, e.Userdata, e.Roles}
	if s.Roles == nil {
		s.Roles = []Role{} // null would not be the same bytes
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// sizeFlaw bounds an environment as a whole: each of its parts may be large, but not all of them.
func sizeFlaw(size int) *Error {
	if size <= maxStored {
		return nil
	}
	return &Error{
		Problem: fmt.Sprintf("the environment takes %d bytes in etcd, at most %d are possible", size, maxStored),
		Advice:  "userdata that all roles have can stand once, above them; larger scripts can be downloaded by small ones",
	}
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
	if head.Format > formatMachines {
		return nil, &Error{
			Problem: fmt.Sprintf("it was written by a newer Pulley (format %d, this one reads %d)", head.Format, formatMachines),
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
	e := &Environment{s.Name, s.Stack, s.Roles, s.Provider, s.Flavors, s.Images, s.Networks, s.Userdata}
	e.tidy()
	if needs := e.needs(); needs > head.Format {
		return nil, fmt.Errorf("it is damaged: format %d has not all of its fields", head.Format)
	}
	if err := valid(e); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return e, nil
}

// valid returns everything that is wrong with e, as one error.
func valid(e *Environment) error {
	var problems Errors
	e.check(false, func(_ spot, flaw *Error) { problems = append(problems, flaw) })
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// tidy makes nothing of what is empty, as reading a file does: the same environment is the same value.
func (e *Environment) tidy() {
	e.Flavors, e.Images, e.Networks = noEmpty(e.Flavors), noEmpty(e.Images), noEmpty(e.Networks)
	e.Provider.Command, e.Provider.SecurityGroups = noNone(e.Provider.Command), noNone(e.Provider.SecurityGroups)
	e.Userdata.Tidy()
	if len(e.Roles) == 0 {
		e.Roles = nil
	}
	for i := range e.Roles {
		e.Roles[i].tidy()
	}
}

func (r *Role) tidy() {
	r.Labels = noEmpty(r.Labels)
	r.Networks, r.After, r.ReactsTo, r.Members = noNone(r.Networks), noNone(r.After), noNone(r.ReactsTo), noNone(r.Members)
	r.Userdata.Tidy()
}

func noEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}

func noNone(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}

package environments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// The versions of the stored form. A field that an older Pulley must not ignore needs a new version. Unknown fields are
// refused, which means that any other field needs one, too. An environment that fits the first version is written in
// it, to keep its bytes the same.
const (
	formatRoles    = 1 // name, stack, and roles with a cardinality and a flavor
	formatMachines = 2 // all of the above, and the settings of machines
)

// maxStored limits the size of the stored form. etcd accepts 1.5 MiB in one request, and a change may contain the old
// and the new form.
const maxStored = 512 << 10

// stored is the stored form, in one line:
// {"v":1,"name":"dev","stack":"t42","roles":[{"name":"web","cardinality":2,"flavor":"small"}]}.
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

// needs returns the lowest version that can hold all of e.
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

// Encode returns the stored form of e. The same environment always has the same bytes. An environment that Parse would
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
		s.Roles = []Role{} // null would be different bytes
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// sizeFlaw limits the total size of an environment: each part may be large, but not all of them.
func sizeFlaw(size int) *Error {
	if size <= maxStored {
		return nil
	}
	return &Error{
		Problem: fmt.Sprintf("the environment takes %d bytes in etcd, at most %d are possible", size, maxStored),
		Advice:  "userdata that all roles have can stand once, above them; larger scripts can be downloaded by small ones",
	}
}

// Decode reads the format of Encode. It refuses newer versions, damaged data, and environments that Parse would refuse.
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
	// The version is read first: a newer form must be reported as newer, not as damaged. Unlike a Decoder, Unmarshal also
	// refuses data after the value.
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

// valid returns all problems of e as one error.
func valid(e *Environment) error {
	var problems Errors
	e.check(false, func(_ spot, flaw *Error) { problems = append(problems, flaw) })
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// tidy makes empty slices and maps nil, as parsing a file does: the same environment is the same value.
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

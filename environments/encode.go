package environments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// storedFormat is the version of the stored form. A new field needs a new version: an older Pulley refuses unknown fields.
// Format 1 is the same form. Earlier builds wrote it for environments without settings of machines.
const storedFormat = 6

// unservedFormat is the format of an environment without Puppet servers and applications, which programs of format 5 can read.
const unservedFormat = 5

// unstagedFormat is the format of an environment without a policy for rollouts and limits of replaced machines, which programs
// of format 4 can read. Before format 5, a role's `replace` was called `rollout`.
const unstagedFormat = 4

// untrustedFormat is the format of an environment without settings for releases, which programs of format 3 can read.
const untrustedFormat = 3

// ungivenFormat is the format of an environment without Given, which programs of format 2 can read.
const ungivenFormat = 2

// maxStored limits the size of the stored form. etcd accepts 1.5 MiB in one request, and a change may contain the old
// and the new form.
const maxStored = 512 << 10

// stored is the stored form, in one line:
// {"v":2,"name":"dev","stack":"t42","roles":[{"name":"web","cardinality":2,"flavor":"small"}]}.
type stored struct {
	Format int `json:"v"`
	*Environment
}

// Encode returns the stored form of e. The same environment always has the same bytes. An environment that Parse would
// refuse is an error.
func Encode(e *Environment) ([]byte, error) {
	err := valid(e)
	var data []byte
	if err == nil {
		data, err = e.bytes()
	}
	if flaw := sizeFlaw(len(data)); err == nil && flaw != nil {
		err = flaw
	}
	if err != nil {
		return nil, fmt.Errorf("cannot store environment %s: %w", model.Quoted(e.Name), err)
	}
	return data, nil
}

func (e *Environment) bytes() ([]byte, error) {
	own := *e
	if own.Roles == nil {
		own.Roles = []Role{} // null would be different bytes
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	format := storedFormat
	switch {
	case own.served() || own.Applications != nil:
	case own.staged():
		format = unservedFormat
	case own.forReleases():
		format = unstagedFormat
	case reflect.ValueOf(own.Given).IsZero():
		format = ungivenFormat
	default:
		format = untrustedFormat
	}
	err := enc.Encode(stored{format, &own})
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// served reports whether the environment has settings of Puppet servers, which programs of format 5 do not know.
func (e *Environment) served() bool {
	known := settings.PuppetSettings{Reports: e.Puppet.Reports, ReportURL: e.Puppet.ReportURL, VolatileFacts: e.Puppet.VolatileFacts}
	return !reflect.DeepEqual(e.Puppet, known) || e.classifies()
}

// staged reports whether the environment has settings that programs of format 4 do not know.
func (e *Environment) staged() bool {
	return !reflect.ValueOf(e.Rollout).IsZero() || slices.ContainsFunc(e.Roles, func(r Role) bool { return r.Replace != replace{} })
}

// forReleases reports whether the environment has settings that nodes read from their releases.
func (e *Environment) forReleases() bool {
	return e.Trusted != nil || e.ByNode != nil || e.DataLayers != nil || !reflect.ValueOf(e.Puppet).IsZero() || !reflect.ValueOf(e.Hosts).IsZero() ||
		slices.ContainsFunc(e.Roles, func(r Role) bool { return r.Trusted != nil || r.Sees != nil || r.Attributes != nil })
}

// sizeFlaw limits the total size of an environment: each part may be large, but not all of them.
func sizeFlaw(size int) *model.Error {
	if size <= maxStored {
		return nil
	}
	return &model.Error{
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
	if head.Format > storedFormat {
		return nil, &model.Error{
			Problem: fmt.Sprintf("it was written by a newer Pulley (format %d, this one reads %d)", head.Format, storedFormat),
			Advice:  "use a newer Pulley here, too",
		}
	}
	if head.Format < 1 {
		return nil, errors.New("it is damaged: it has no format version")
	}
	if head.Format <= unstagedFormat {
		data = renamed(data)
	}
	e := new(Environment)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&stored{Environment: e}); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	tidy(fieldsOf(e))
	e.Given.Tidy()
	if err := valid(e); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return e, nil
}

// renamed returns the stored form with the name that a role's `rollout` has since format 5. Data of another form stays as it is.
func renamed(data []byte) []byte {
	var e map[string]json.RawMessage
	var roles []map[string]json.RawMessage
	if json.Unmarshal(data, &e) != nil || json.Unmarshal(e["roles"], &roles) != nil {
		return data
	}
	for _, r := range roles {
		if limits, has := r["rollout"]; has {
			delete(r, "rollout")
			r["replace"] = limits
		}
	}
	var err error
	if e["roles"], err = json.Marshal(roles); err != nil {
		return data
	}
	if changed, err := json.Marshal(e); err == nil {
		return changed
	}
	return data
}

// valid returns all problems of e as one error.
func valid(e *Environment) error {
	var problems Errors
	e.check(false, func(_ spot, flaw *model.Error) { problems = append(problems, flaw) })
	return problems.orNil()
}

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"pulley/internal/clip"
	"pulley/internal/machines"
)

// format is the version of requests. A request that older commands cannot answer gets another one.
const format = 1

// The requests.
const (
	doList   = "list"
	doCreate = "create"
	doDelete = "delete"
)

// request is the standard input of a command.
type request struct {
	Format  int    `json:"v"`
	Do      string `json:"do"`
	Mark    mark   `json:"mark"`
	Machine any    `json:"machine,omitempty"` // create: ordered; delete: machines.Ref

	name string // of the machine
}

type mark struct {
	Owner string `json:"owner"`
	Fleet string `json:"fleet"`
}

type ordered struct {
	machines.Order
	Userdata []byte `json:"userdata,omitempty"` // base64
}

// answered is the output of a command.
type answered struct {
	Machines *[]machine `json:"machines"`
	Machine  *machine   `json:"machine"`
	Error    *struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
		After   string `json:"after"`
	} `json:"error"`
}

type machine struct {
	Name      string   `json:"name"`
	ID        string   `json:"id"`
	State     string   `json:"state"`
	Problem   string   `json:"problem"`
	Flavor    string   `json:"flavor"`
	Image     string   `json:"image"`
	Addresses []string `json:"addresses"`
	Created   string   `json:"created"`
	Mark      *mark    `json:"mark"`
}

// answer is a checked answer.
type answer struct{ machines []machines.Machine }

// reportedError is an error that the command itself reported.
type reportedError struct{ err error }

func (e *reportedError) Error() string { return "reports: " + e.err.Error() }
func (e *reportedError) Unwrap() error { return e.err }

// read checks the output of the command. One wrong part makes the complete answer wrong. Unknown fields are ignored.
func (r request) read(out []byte) (answer, error) {
	var a answered
	if err := decode(out, &a); err != nil {
		return answer{}, err
	}
	if a.Error != nil {
		return answer{}, &reportedError{r.reported(a.Error.Kind, a.Error.Message, a.Error.After)}
	}
	var all []machine
	switch r.Do {
	case doList:
		// A missing list must not count as an empty one: machines would be created again.
		if a.Machines == nil {
			return answer{}, errors.New("answered `list` without `machines`")
		}
		all = *a.Machines
	case doCreate:
		if a.Machine == nil {
			return answer{}, errors.New("answered `create` without `machine`")
		}
		if a.Machine.Name != r.name {
			return answer{}, fmt.Errorf("answered with the machine %q", a.Machine.Name)
		}
		all = []machine{*a.Machine}
	}
	var checked answer
	seen := map[machines.Ref]bool{}
	for i, m := range all {
		c, err := m.check(r.Mark)
		if err != nil {
			return answer{}, fmt.Errorf("answered with a machine (number %d, %.80q) %w", i+1, m.Name, err)
		}
		key := machines.Ref{Name: c.Name, ID: c.ID}
		if seen[key] {
			return answer{}, fmt.Errorf("answered with the machine %q (%s) twice", c.Name, c.ID)
		}
		seen[key] = true
		checked.machines = append(checked.machines, c)
	}
	return checked, nil
}

// decode reads one JSON object, which must be the complete output.
func decode(out []byte, a *answered) error {
	if len(bytes.TrimSpace(out)) == 0 {
		return errors.New("printed no answer")
	}
	if first := bytes.TrimSpace(out)[0]; first != '{' {
		return fmt.Errorf("did not answer with a JSON object: %.80q", out)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	err := dec.Decode(a)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("answered with a %s as `%s`, which is a %s", wrong.Value, wrong.Field, wrong.Type)
	case err != nil:
		return fmt.Errorf("did not answer with a JSON object: %w: %.80q", err, out)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("answered with something after its JSON object")
	}
	return nil
}

// longestWait bounds the pause that a command can request.
const longestWait = time.Hour

// reported returns the error of a kind.
func (r request) reported(kind, message, after string) error {
	err := errors.New(clip.Line(message, 1000))
	if message == "" {
		err = errors.New("an error without a message")
	}
	switch kind {
	case "quota":
		return fmt.Errorf("%w: %w", machines.ErrQuota, err)
	case "refused":
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	case "throttle":
		wait, badWait := time.ParseDuration(after)
		if after != "" && (badWait != nil || wait < 0) {
			err = fmt.Errorf("%w (`error.after` is %.40q, not a duration such as 30s)", err, after)
		}
		return &machines.WaitError{After: min(max(0, wait), longestWait), Err: err}
	case "taken":
		if r.Do == doCreate {
			return fmt.Errorf("%w: %w", &machines.TakenError{Name: r.name}, err)
		}
	}
	return err
}

// check refuses a machine of another fleet, and text that cannot be shown.
func (m machine) check(want mark) (machines.Machine, error) {
	checked := machines.Machine{
		Name: m.Name, ID: m.ID, State: machines.State(m.State), Problem: clip.Line(m.Problem, 1000), Flavor: m.Flavor, Image: m.Image, Addresses: m.Addresses,
	}
	switch {
	case m.Mark == nil:
		return checked, errors.New("without its `mark`")
	case *m.Mark != want:
		return checked, fmt.Errorf("whose mark is %.80q and not %q", machines.Mark(*m.Mark), machines.Mark(want))
	case !slices.Contains(machines.States(), checked.State):
		return checked, fmt.Errorf("whose `state` is %.40q, not one of %v", m.State, machines.States())
	}
	words := []word{{"name", m.Name, false}, {"id", m.ID, true}, {"flavor", m.Flavor, true}, {"image", m.Image, true}}
	for _, a := range m.Addresses {
		words = append(words, word{"addresses", a, false})
	}
	for _, w := range words {
		if w.text == "" && !w.empty || len(w.text) > maxWord || clip.Line(w.text, maxWord) != w.text {
			return checked, fmt.Errorf("whose `%s` is %.80q, which is empty, too long, or has characters that cannot be shown", w.field, w.text)
		}
	}
	if m.Created != "" {
		created, err := time.Parse(time.RFC3339, m.Created)
		if err != nil {
			return checked, fmt.Errorf("whose `created` is %.40q, not a time such as 2026-05-04T03:02:01Z", m.Created)
		}
		checked.Created = created
	}
	return checked, nil
}

const maxWord = 255

type word struct {
	field, text string
	empty       bool // is allowed
}

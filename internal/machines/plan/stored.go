package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/machines"
)

// planFields are the fields of a plan without its methods.
type planFields Plan

// storedPlan is a plan in a file: the output of `pulley env plan -o json`, and the stored form of the environment.
type storedPlan struct {
	planFields
	Fleet string          `json:"environment"`
	Spec  json.RawMessage `json:"spec"`
}

// Encode returns the stored form of a plan: indented JSON.
func Encode(p Plan) ([]byte, error) {
	spec, err := environments.Encode(p.Spec)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the plan: %w", err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(storedPlan{planFields: planFields(p), Fleet: p.Fleet.String(), Spec: spec}); err != nil {
		return nil, fmt.Errorf("cannot encode the plan: %w", err)
	}
	return out.Bytes(), nil
}

// Decode reads the format of Encode, and nothing else. Changes is empty: it is not stored.
func Decode(data []byte) (Plan, error) {
	p, err := decodePlan(data)
	if err != nil {
		return Plan{}, fmt.Errorf("cannot read the stored plan: %w", err)
	}
	return p, nil
}

func decodePlan(data []byte) (Plan, error) {
	var head struct {
		Format int `json:"v"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Plan{}, fmt.Errorf("it is damaged: %w", err)
	}
	if head.Format > Format {
		return Plan{}, fmt.Errorf("a newer Pulley wrote it (format %d, this one reads %d)\nupgrade this Pulley", head.Format, Format)
	}
	if head.Format < 1 {
		return Plan{}, errors.New("it is not a plan: it has no format version")
	}
	var s storedPlan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Plan{}, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, errors.New("it is damaged: data follows the plan")
	}
	p := Plan(s.planFields)
	var err error
	if p.Fleet, err = environments.ParseRef(s.Fleet); err != nil {
		return Plan{}, err
	}
	if p.Spec, err = environments.Decode(s.Spec); err != nil {
		return Plan{}, err
	}
	if p.Steps == nil {
		p.Steps = []Step{}
	}
	if p.Spec.Ref() != p.Fleet || p.Spec.Driver() != p.Driver {
		return Plan{}, fmt.Errorf("it is damaged: the plan is of %s with provider %q, and its environment is %s with provider %q", p.Fleet, p.Driver, p.Spec.Ref(), p.Spec.Driver())
	}
	for _, st := range p.Steps {
		if err := st.check(); err != nil {
			return Plan{}, fmt.Errorf("it is damaged: step of %q: %w", clip.Line(st.Node, 80), err)
		}
	}
	return p, nil
}

// check returns an error for a step that Make never returns.
func (s Step) check() error {
	switch {
	case !slices.Contains(Verbs(), s.Verb):
		return fmt.Errorf("unknown verb %q", clip.Line(string(s.Verb), 80))
	case s.Node == "":
		return errors.New("no node")
	case s.Creates != (s.Order != nil):
		return errors.New("creates a machine without an order, or has an order and creates none")
	case s.Order != nil && s.Order.Node != s.Node:
		return fmt.Errorf("the order is of %q", clip.Line(s.Order.Node, 80))
	case !s.Acts() && (s.Creates || s.Removes || len(s.Deletes) > 0):
		return fmt.Errorf("verb %s changes nothing, and the step does", s.Verb)
	case slices.ContainsFunc(s.Deletes, func(m machines.Ref) bool { return m.Name == "" }):
		return errors.New("deletes a machine without a name")
	}
	return nil
}

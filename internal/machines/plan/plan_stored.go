package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"pulley/environments"
	"pulley/internal/machines"
)

// planFields are a plan's without its methods.
type planFields Plan

// storedPlan is a plan in a file: as `pulley env plan -o json` shows it, and the environment as it is stored.
type storedPlan struct {
	planFields
	Fleet string          `json:"environment"`
	Spec  json.RawMessage `json:"spec"`
}

// Encode returns the stored form of a plan: JSON, for people to look into.
func Encode(p Plan) ([]byte, error) {
	spec, err := environments.Encode(p.Spec)
	if err != nil {
		return nil, fmt.Errorf("cannot store plan: %w", err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(storedPlan{planFields: planFields(p), Fleet: p.Fleet.String(), Spec: spec}); err != nil {
		return nil, fmt.Errorf("cannot store plan: %w", err)
	}
	return out.Bytes(), nil
}

// Decode reads what Encode writes, and nothing else. What the environment changes of the one that is stored is not in
// it: Changes is empty.
func Decode(data []byte) (Plan, error) {
	p, err := decodePlan(data)
	if err != nil {
		return Plan{}, fmt.Errorf("cannot read stored plan: %w", err)
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
	if head.Format > PlanFormat {
		return Plan{}, fmt.Errorf("it was written by a newer Pulley (format %d, this one reads %d)\nuse a newer Pulley here, too", head.Format, PlanFormat)
	}
	if head.Format < 1 {
		return Plan{}, errors.New("it is no plan: it has no format version")
	}
	var s storedPlan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Plan{}, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, errors.New("it is damaged: something follows it")
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
		return Plan{}, fmt.Errorf("it is damaged: it is of %s with provider %s, and its environment is %s with provider %s", p.Fleet, machines.Clean(p.Driver), p.Spec.Ref(), p.Spec.Driver())
	}
	for _, st := range p.Steps {
		if err := st.check(); err != nil {
			return Plan{}, fmt.Errorf("it is damaged: what it says of %s: %w", machines.Quote(st.Node), err)
		}
	}
	return p, nil
}

// check is an error for a step that Make makes of nothing.
func (s Step) check() error {
	switch {
	case !slices.Contains(Verbs(), s.Verb):
		return fmt.Errorf("it has no verb %s", machines.Quote(string(s.Verb)))
	case s.Node == "":
		return errors.New("it names no node")
	case s.Makes != (s.Order != nil):
		return errors.New("it asks for a machine without an order, or has an order and asks for none")
	case s.Order != nil && s.Order.Node != s.Node:
		return fmt.Errorf("its order is of %s", machines.Quote(s.Order.Node))
	case !s.acts() && (s.Makes || s.Removes || len(s.Victims) > 0):
		return fmt.Errorf("%s does nothing, and it says that something is done", s.Verb)
	case slices.ContainsFunc(s.Victims, func(v machines.Ref) bool { return v.Name == "" }):
		return errors.New("it destroys a machine without a name")
	}
	return nil
}

// Same tells in sentences how a plan that was made now differs from one that was stored; nothing when it does the same. What
// changes by itself does not count: times, how far machines are that are waited for, and nodes that nothing is done to.
func Differences(stored, now Plan) []string {
	var said []string
	if stored.Fleet != now.Fleet {
		return []string{fmt.Sprintf("the plan is of %s, and this is %s", stored.Fleet, now.Fleet)}
	}
	if stored.Driver != now.Driver {
		said = append(said, fmt.Sprintf("the provider was %s, and is %s now", machines.Clean(stored.Driver), machines.Clean(now.Driver)))
	}
	if stored.Revision != now.Revision {
		said = append(said, fmt.Sprintf("the environment %s was stored since by somebody else", now.Fleet))
	}
	if !SameSpec(stored.Spec, now.Spec) {
		said = append(said, "the environment's file is another")
	}
	before, after := stored.active(), now.active()
	for _, s := range stored.Steps {
		if was, ok := before[s.key()]; ok {
			if is, ok := after[s.key()]; !ok {
				said = append(said, fmt.Sprintf("%s of %s was planned, and is not to be done any more%s", was.Verb, machines.Clean(was.Node), nowIs(now, was.Node)))
			} else if d := was.differs(is); d != "" {
				said = append(said, fmt.Sprintf("%s: %s", machines.Clean(is.Node), d))
			}
		}
	}
	for _, s := range now.Steps {
		if is, ok := after[s.key()]; ok {
			if _, ok := before[s.key()]; !ok {
				said = append(said, fmt.Sprintf("%s of %s was not planned: %s", is.Verb, machines.Clean(is.Node), is.Why))
			}
		}
	}
	return said
}

// stepKey tells the steps of a plan apart: a node has one, and one for each duplicate of it.
type stepKey struct {
	node      string
	duplicate machines.Ref
}

func (s Step) key() stepKey {
	if s.Verb == Duplicate && len(s.Victims) > 0 {
		return stepKey{s.Node, s.Victims[0]}
	}
	return stepKey{node: s.Node}
}

// active are the steps that do something, or that would if they were not blocked.
func (p Plan) active() map[stepKey]Step {
	steps := map[stepKey]Step{}
	for _, s := range p.Steps {
		if s.acts() {
			steps[s.key()] = s
		}
	}
	return steps
}

// differs says what of a step is another now; "" for nothing that counts.
func (s Step) differs(now Step) string {
	switch {
	case s.Verb != now.Verb:
		return fmt.Sprintf("%s was planned, and now it is %s: %s", s.Verb, now.Verb, now.Why)
	case !slices.Equal(s.Victims, now.Victims):
		return fmt.Sprintf("%s was to be destroyed, and now it is %s", named(s.Victims), named(now.Victims))
	case s.Makes != now.Makes || !reflect.DeepEqual(s.Order, now.Order):
		return "another machine is asked for now"
	case s.Removes != now.Removes:
		return "whether it leaves the fleet is decided otherwise now"
	case (s.Blocked == "") != (now.Blocked == ""):
		return "whether it may be done is decided otherwise now"
	}
	return ""
}

// nowIs says what a plan does with a node instead.
func nowIs(p Plan, node string) string {
	for _, s := range p.Steps {
		if s.Node == node {
			return ": " + s.Why
		}
	}
	return ""
}

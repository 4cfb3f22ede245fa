package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"pulley/environments"
	"pulley/internal/model"
)

// stored is a plan in a file: the output of `pulley env plan -o json`, and the stored form of the environment.
type stored struct {
	Plan
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
	if err := enc.Encode(stored{p, p.Fleet.String(), spec}); err != nil {
		return nil, fmt.Errorf("cannot encode the plan: %w", err)
	}
	return out.Bytes(), nil
}

// Decode reads the format of Encode. Changes is empty: it is not stored. A stored plan is never carried out. It is
// compared with a plan made now: Differences reports each edit of the file.
func Decode(data []byte) (Plan, error) {
	p, err := decode(data)
	if err != nil {
		return Plan{}, fmt.Errorf("cannot read the stored plan: %w", err)
	}
	return p, nil
}

func decode(data []byte) (Plan, error) {
	var head struct {
		Format int `json:"v"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Plan{}, fmt.Errorf("it is damaged: %w", err)
	}
	if head.Format > format {
		return Plan{}, fmt.Errorf("a newer Pulley wrote it (format %d, this one reads %d)\nupgrade this Pulley", head.Format, format)
	}
	if head.Format < 1 {
		return Plan{}, errors.New("it is not a plan: it has no format version")
	}
	var s stored
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Plan{}, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, errors.New("it is damaged: data follows the plan")
	}
	p := s.Plan
	var err error
	if p.Fleet, err = model.ParseRef(s.Fleet); err != nil {
		return Plan{}, err
	}
	p.Spec, err = environments.Decode(s.Spec)
	return p, err
}

package hieradata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"
	"unicode/utf8"
)

// maxGenerationBytes is the maximum size of a generation's record, which is one value in etcd.
const maxGenerationBytes = 512 << 10

const (
	generationFormat    = 1
	maxEnvironmentBytes = 256
	maxMessageBytes     = 4 << 10
	maxByBytes          = 256
)

// Generation is one state of an environment's live data. It is immutable; every change creates the next one.
type Generation struct {
	V int `json:"v"` // format of this record
	// its fleet, such as dev or dev@t42: a signature is valid for this fleet only
	Environment string           `json:"environment,omitempty"`
	Number      int64            `json:"number"` // from 1
	Layers      map[Layer]string `json:"layers"` // digest of each layer that is not empty
	By          string           `json:"by"`
	Message     string           `json:"message"`
	At          time.Time        `json:"at"`       // UTC
	Previous    int64            `json:"previous"` // number of the generation before this change; 0 for the first
}

// Next returns the generation after g; the zero Generation precedes the first. changes contains the canonical bytes of
// each changed layer; an empty one removes the layer. The result shares no memory with g.
func (g Generation) Next(changes map[Layer][]byte, by, message string, at time.Time) (Generation, error) {
	next := Generation{
		V: generationFormat, Environment: g.Environment, Number: g.Number + 1, Layers: maps.Clone(g.Layers),
		By: by, Message: message, At: at.UTC().Truncate(time.Millisecond), Previous: g.Number,
	}
	if next.Layers == nil {
		next.Layers = map[Layer]string{}
	}
	for layer, data := range changes {
		if len(data) == 0 {
			delete(next.Layers, layer)
			continue
		}
		canonical, err := canonicalOf(data)
		if err != nil {
			return Generation{}, fmt.Errorf("cannot use layer %s: %w", layer, err)
		}
		if !bytes.Equal(canonical, data) {
			return Generation{}, fmt.Errorf("cannot use layer %s: its bytes are not canonical", layer)
		}
		if len(data) > maxLayerBytes {
			return Generation{}, fmt.Errorf("layer %s is %d bytes, and a layer may be at most %d", layer, len(data), maxLayerBytes)
		}
		next.Layers[layer] = Digest(data)
	}
	return next, next.validate()
}

// Encode returns the record's bytes. The same generation has the same bytes on every machine.
func (g Generation) Encode() ([]byte, error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("cannot encode data generation %d: %w", g.Number, err)
	}
	if len(data) > maxGenerationBytes {
		return nil, fmt.Errorf("data generation %d with its %d layers takes %d bytes, and %d is the most: move data of nodes into their roles",
			g.Number, len(g.Layers), len(data), maxGenerationBytes)
	}
	return data, nil
}

// Digest returns the sha256 of the encoded record as 64 hex digits; "" for a generation that cannot be encoded.
func (g Generation) Digest() string {
	data, err := g.Encode()
	if err != nil {
		return ""
	}
	return Digest(data)
}

// DecodeGeneration reads a record. It accepts only the bytes that Encode returns: two records with different digests
// never have the same content, and a record has no hidden content.
func DecodeGeneration(data []byte) (Generation, error) {
	fail := func(problem string) (Generation, error) {
		return Generation{}, fmt.Errorf("cannot read a data generation: %s", problem)
	}
	if len(data) > maxGenerationBytes {
		return fail(fmt.Sprintf("%d bytes are too many", len(data)))
	}
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fail(err.Error())
	}
	switch {
	case head.V > generationFormat:
		return fail(fmt.Sprintf("it has format %d and this program knows up to %d; install a newer Pulley", head.V, generationFormat))
	case head.V < generationFormat:
		return fail(fmt.Sprintf("there is no format %d", head.V))
	}
	var g Generation
	if err := json.Unmarshal(data, &g); err != nil {
		return fail(err.Error())
	}
	again, err := g.Encode()
	if err != nil {
		return Generation{}, err
	}
	if !bytes.Equal(again, data) {
		return fail("its bytes are not in the form that Pulley writes")
	}
	return g, nil
}

func (g Generation) validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("data generation %d is not valid: %s", g.Number, fmt.Sprintf(format, args...))
	}
	switch {
	case g.V != generationFormat:
		return fail("its format is %d", g.V)
	case g.Number < 1:
		return fail("numbers start at 1")
	case g.Previous < 0 || g.Previous >= g.Number:
		return fail("%d can't be the one before it", g.Previous)
	case g.Layers == nil:
		return fail("its list of layers is missing")
	case len(g.Environment) > maxEnvironmentBytes || !utf8.ValidString(g.Environment):
		return fail("its environment is not a text of at most %d bytes", maxEnvironmentBytes)
	case len(g.By) > maxByBytes || !utf8.ValidString(g.By):
		return fail("its author is not a text of at most %d bytes", maxByBytes)
	case len(g.Message) > maxMessageBytes || !utf8.ValidString(g.Message):
		return fail("its message is not a text of at most %d bytes", maxMessageBytes)
	case g.At.Year() < 1 || g.At.Year() > 9999 || g.At.Location() != time.UTC:
		return fail("its time is not in UTC, or not a valid date")
	}
	for layer, digest := range g.Layers {
		if err := layer.Check(); err != nil {
			return fail("%v", err)
		}
		if !digestForm().MatchString(digest) {
			return fail("the digest of layer %s is not 64 hex digits", layer)
		}
	}
	return nil
}

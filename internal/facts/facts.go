// Package facts is the form in which a node publishes the facts of its machine: without volatile ones, as canonical JSON,
// compressed, and bounded. Both programs use it: the node encodes, operators decode.
//
// It must never trust what it decodes: the machine's owner chose every byte. It must never import etcd or run a program.
package facts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"pulley/internal/clip"
)

// The limits of a node's published facts.
const (
	MaxBytes  = 16 << 10  // of a stored value
	MaxJSON   = 256 << 10 // of an unpacked value
	maxNames  = 50        // of facts that were cut, listed by name
	maxName   = 120       // bytes of such a name
	maxSource = 8 << 20   // of the facts of a run
)

// format is the version of published facts that this package writes. It reads no newer one.
const format = 1

// Published are the facts of one node.
type Published struct {
	At      time.Time                  `json:"at"`                // when the node first had these values
	Facts   map[string]json.RawMessage `json:"facts"`             // by name
	Trusted json.RawMessage            `json:"trusted,omitempty"` // the value of $trusted; nil if the node did not report it
	Cut     []string                   `json:"cut"`               // names of facts that were too large; the first of them
	More    int                        `json:"more,omitempty"`    // number of further facts that were too large
}

// head is the first line of the stored form: Published without the facts. Each fact is one further line, `"os":{…}`, so that
// a reader of a whole fleet finds one fact without reading the others.
type head struct {
	V       int             `json:"v"`
	At      time.Time       `json:"at"`
	Trusted json.RawMessage `json:"trusted,omitempty"`
	Cut     []string        `json:"cut,omitempty"`
	More    int             `json:"more,omitempty"`
}

// Source is what a run leaves: the facts, and the names of those that were too large for it.
type Source struct {
	Facts   map[string]json.RawMessage `json:"facts"`
	Trusted json.RawMessage            `json:"trusted"`
	Cut     []string                   `json:"cut"`
}

// ParseSource reads the file of a run.
func ParseSource(b []byte) (Source, error) {
	var s Source
	if len(b) > maxSource {
		return s, fmt.Errorf("cannot read the facts of a run: they are larger than %d bytes", maxSource)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("cannot read the facts of a run: %w", err)
	}
	return s, nil
}

// From returns what a node publishes of a run's facts: canonical, without volatile ones, and small enough.
func (s Source) From(volatile []string, at time.Time) (Published, error) {
	drop := newPatterns(slices.Concat(Volatile, volatile))
	p := Published{At: at.UTC().Truncate(time.Second), Facts: map[string]json.RawMessage{}, Cut: []string{}}
	for name, raw := range s.Facts {
		kept, err := drop.without(name, raw)
		if err != nil {
			return p, fmt.Errorf("cannot read fact %q: %w", clip.Line(name, maxName), err)
		}
		if kept != nil {
			p.Facts[name] = kept
		}
	}
	if len(s.Trusted) > 0 && len(s.Trusted) <= MaxBytes/2 {
		var err error
		if p.Trusted, err = canonical(s.Trusted); err != nil {
			return p, fmt.Errorf("cannot read $trusted: %w", err)
		}
	}
	return p.fit(s.Cut)
}

// fit leaves out facts until the value is small enough: the largest first, and facts of Facter itself last.
func (p Published) fit(cut []string) (Published, error) {
	all := p.Facts
	order := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), len(all[b])-len(all[a]), cmp.Compare(a, b))
	})
	without := func(n int) Published {
		q := p
		q.Facts = map[string]json.RawMessage{}
		for _, name := range order[n:] {
			q.Facts[name] = all[name]
		}
		names := slices.Sorted(slices.Values(append(slices.Clone(order[:n]), cut...)))
		names = slices.Compact(names)
		q.Cut, q.More = []string{}, max(0, len(names)-maxNames)
		for _, name := range names[:min(len(names), maxNames)] {
			q.Cut = append(q.Cut, clip.Text(name, maxName))
		}
		return q
	}
	from, to := 0, len(order) // the least number of facts to leave out, by halves
	for from < to {
		middle := (from + to) / 2
		if b, err := without(middle).Encode(); err == nil && len(b) <= MaxBytes {
			to = middle
		} else {
			from = middle + 1
		}
	}
	q := without(from)
	_, err := q.Encode()
	return q, err
}

func rank(name string) int {
	if core[name] {
		return 1
	}
	return 0
}

// Same reports whether two values have the same facts, gathered at any time.
func (p Published) Same(q Published) bool {
	a, err := p.encode(time.Time{})
	b, err2 := q.encode(time.Time{})
	return err == nil && err2 == nil && bytes.Equal(a, b)
}

func (p Published) encode(at time.Time) ([]byte, error) {
	first, err := encode(head{format, at, p.Trusted, p.Cut, p.More})
	if err != nil {
		return nil, fmt.Errorf("cannot encode facts: %w", err)
	}
	text := append([]byte{}, first...)
	for _, name := range slices.Sorted(maps.Keys(p.Facts)) {
		quoted, err := encode(name)
		if err != nil {
			return nil, fmt.Errorf("cannot encode facts: %w", err)
		}
		text = append(append(append(append(text, '\n'), quoted...), ':'), p.Facts[name]...)
	}
	return text, nil
}

// encoder and decoder are made once, at their first use: most ticks need neither.
var (
	encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(MaxJSON))
	})
	decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxJSON), zstd.WithDecoderMaxWindow(MaxJSON))
	})
)

// errTooLarge means that facts are too large to be published.
var errTooLarge = errors.New("cannot encode facts: they are too large")

// Encode packs a value. The result may be larger than MaxBytes.
func (p Published) Encode() ([]byte, error) {
	text, err := p.encode(p.At)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxJSON {
		return nil, errTooLarge
	}
	z, err := encoder()
	if err != nil {
		return nil, fmt.Errorf("cannot encode facts: %w", err)
	}
	return z.EncodeAll(text, nil), nil
}

// unpack returns the head and the lines of a stored value. It never unpacks more than MaxJSON bytes.
func unpack(b []byte) (h head, lines []byte, err error) {
	if len(b) > MaxBytes {
		return h, nil, fmt.Errorf("cannot decode facts: they have %d bytes, more than %d", len(b), MaxBytes)
	}
	z, err := decoder()
	if err != nil {
		return h, nil, fmt.Errorf("cannot decode facts: %w", err)
	}
	text, err := z.DecodeAll(b, nil)
	if err != nil {
		return h, nil, fmt.Errorf("cannot unpack facts: %w", err)
	}
	first, lines, _ := bytes.Cut(text, []byte("\n"))
	err = json.Unmarshal(first, &h)
	if h.V > format { // check this first: a newer value may look damaged
		return h, nil, fmt.Errorf("cannot decode facts: their format %d is newer than this program's %d; upgrade pulley", h.V, format)
	}
	if err != nil {
		return h, nil, fmt.Errorf("cannot decode facts: %w", err)
	}
	if h.V == 0 {
		return h, nil, errors.New("cannot decode facts: they were not written by pulley")
	}
	return h, lines, nil
}

// Decode unpacks the result of Encode.
func Decode(b []byte) (Published, error) {
	h, lines, err := unpack(b)
	if err != nil {
		return Published{}, err
	}
	p := Published{At: h.At, Facts: map[string]json.RawMessage{}, Trusted: h.Trusted, Cut: h.Cut, More: h.More}
	if p.Cut == nil {
		p.Cut = []string{}
	}
	for line := range bytes.SplitSeq(lines, []byte("\n")) {
		if len(lines) == 0 {
			break
		}
		d := json.NewDecoder(bytes.NewReader(line))
		var name string
		err := d.Decode(&name)
		value, isPair := bytes.CutPrefix(line[min(int(d.InputOffset()), len(line)):], []byte(":"))
		if err != nil || !isPair || !json.Valid(value) {
			return Published{}, errors.New("cannot decode facts: a line is no fact")
		}
		p.Facts[name] = value
	}
	return p, nil
}

// Pick returns some facts of the result of Encode, and the value of $trusted: those that exist, undecoded and unchecked. It
// reads a fleet in a fraction of the time of Decode.
func Pick(b []byte, names []string) (found map[string]json.RawMessage, trusted json.RawMessage, err error) {
	h, lines, err := unpack(b)
	if err != nil {
		return nil, nil, err
	}
	found = map[string]json.RawMessage{}
	for _, name := range names {
		quoted, err := encode(name)
		if err != nil {
			return nil, nil, err
		}
		start := append(append([]byte("\n"), quoted...), ':')
		at := 0
		if !bytes.HasPrefix(lines, start[1:]) {
			if at = bytes.Index(lines, start) + 1; at == 0 {
				continue
			}
		}
		value, _, _ := bytes.Cut(lines[at+len(start)-1:], []byte("\n"))
		found[name] = value
	}
	return found, h.Trusted, nil
}

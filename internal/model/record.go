package model

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"pulley/internal/clip"
)

// EncodedRun is a stored run record: gzipped JSON of at most 8 KiB.
type EncodedRun struct {
	ID    string
	Bytes []byte
}

const (
	maxRunBytes    = 8 << 10 // of a stored record
	maxRunJSON     = 1 << 20 // of an unpacked record: the limit for readers
	maxMessage     = 400     // of one line of a record that is too large
	keptAtLeastLog = 5
)

// runFormat is the version of run records that this package writes. It reads no newer one.
const runFormat = 1

type storedRun struct {
	V         int  `json:"v"`
	Truncated bool `json:"truncated,omitempty"`
	Run
}

// EncodeRun packs a run. If the run is too large, EncodeRun removes log lines first, then resources, from the end, and
// marks the record as truncated. The full report stays on the node.
func EncodeRun(r Run) (EncodedRun, error) {
	truncated := false
	for {
		b, err := pack(storedRun{V: runFormat, Truncated: truncated, Run: r})
		if err != nil {
			return EncodedRun{}, fmt.Errorf("cannot encode run %s: %w", r.ID, err)
		}
		if len(b) <= maxRunBytes {
			return EncodedRun{ID: r.ID, Bytes: b}, nil
		}
		switch {
		case !truncated:
			r = clipped(r)
		case slices.ContainsFunc(r.Resources, func(e ResourceEvent) bool { return e.Diff != "" }):
			for i := range r.Resources { // a copy
				r.Resources[i].Cut, r.Resources[i].Diff = r.Resources[i].Cut || r.Resources[i].Diff != "", ""
			}
		case len(r.Log) > keptAtLeastLog:
			r.Log = r.Log[:max(keptAtLeastLog, len(r.Log)/2)]
		case len(r.Resources) > 1:
			r.Resources = r.Resources[:len(r.Resources)/2]
		case len(r.Log) == 0 && len(r.Resources) == 0 && r.Durations == nil:
			return EncodedRun{}, fmt.Errorf("cannot encode run %s: its bare record is larger than %d bytes", r.ID, maxRunBytes)
		default:
			r.Log, r.Resources, r.Durations, r.Steps = nil, nil, nil, nil
			r.Problem = r.Problem.Clipped(maxMessage)
		}
		truncated = true
	}
}

// DecodeRun unpacks the output of EncodeRun. It never reads more than 1 MiB and never panics.
func DecodeRun(b []byte) (r Run, truncated bool, err error) {
	var s storedRun
	err = unpack(b, &s)
	if s.V > runFormat { // check this first: a newer record may look damaged
		return Run{}, false, fmt.Errorf("cannot decode run record: its format %d is newer than this program's %d; upgrade pulley", s.V, runFormat)
	}
	if err != nil {
		return Run{}, false, fmt.Errorf("cannot decode run record: %w", err)
	}
	return s.Run, s.Truncated, nil
}

// unpack reads the output of pack, at most 1 MiB of it.
func unpack(b []byte, into any) error {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("cannot unpack it: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(z, maxRunJSON+1))
	if err != nil {
		return fmt.Errorf("cannot unpack it: %w", err)
	}
	if len(raw) > maxRunJSON {
		return fmt.Errorf("cannot unpack it: it is larger than %d bytes", maxRunJSON)
	}
	return json.Unmarshal(raw, into)
}

func pack(value any) ([]byte, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(raw); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// clipped returns a copy of r with every message cut to maxMessage.
func clipped(r Run) Run {
	r.Problem = r.Problem.Clipped(4 * maxMessage)
	log := make([]LogLine, len(r.Log))
	for i, l := range r.Log {
		l.Message = clip.Text(l.Message, maxMessage)
		log[i] = l
	}
	resources := make([]ResourceEvent, len(r.Resources))
	for i, e := range r.Resources {
		messages := make([]string, len(e.Messages))
		for j, m := range e.Messages {
			messages[j] = clip.Text(m, maxMessage)
		}
		e.Messages = messages
		e.Diff, e.Cut = clip.Text(e.Diff, maxDiff/4), e.Cut || len(e.Diff) > maxDiff/4
		resources[i] = e
	}
	r.Log, r.Resources = log, resources
	return r
}

// Digest returns the SHA-256 of b as 64 hex digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

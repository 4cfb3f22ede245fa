package model

import (
	"fmt"
	"slices"
	"time"

	"pulley/internal/clip"
)

// PreviewOrder is an operator's order to show what a target would change. The node carries it out once, in addition to its
// own work. A lease of etcd ends the order.
type PreviewOrder struct {
	ID      string        `json:"id"`                // 16 hex digits; the answer names it
	Machine string        `json:"machine,omitempty"` // machine id of the host list when it was written
	Target  Target        `json:"target"`            // the node's wanted target fills its empty parts
	Limit   time.Duration `json:"limit"`             // of Puppet's run
	By      string        `json:"by,omitempty"`
	At      time.Time     `json:"at,omitzero"`
}

// Preview is a node's answer to a preview order. Without a cause and a problem, Puppet looked at the complete catalog.
type Preview struct {
	Order   string          `json:"order"` // its id
	Node    string          `json:"node"`
	Target  Target          `json:"target"`
	Cause   *Cause          `json:"cause,omitempty"`  // why the node did not run Puppet
	Problem Problem         `json:"problem,omitzero"` // cause of a failed run
	Counts  Counts          `json:"counts"`
	Changes []ResourceEvent `json:"changes,omitempty"` // failed first, then skipped, then those that would change
	Left    int             `json:"left,omitempty"`    // changes beyond the limits
	NoDiffs bool            `json:"no_diffs,omitempty"`
	Took    time.Duration   `json:"took"`
}

// PropertyChange is a property of a resource that a run would change. Puppet replaces sensitive values.
type PropertyChange struct {
	Property string `json:"property"`
	Old      string `json:"old"`
	New      string `json:"new"`
}

// PreviewState is what the node remembers of the newest preview order.
type PreviewState struct {
	Order    string `json:"order"` // its id
	Tries    int    `json:"tries"` // begun so far
	Answered bool   `json:"answered,omitempty"`
}

// Limits of an answer.
const (
	maxPreviewBytes = 32 << 10 // of a stored answer
	maxDiff         = 4 << 10
	maxValue        = 400  // of a property, and of each name
	maxChanges      = 1000 // resources
	maxParts        = 50   // properties or messages of a resource
)

// PreviewOrder returns the order that concerns this machine, or nil.
func (d Desired) PreviewOrder(machine string) *PreviewOrder {
	o := d.Preview
	if o == nil || d.Host == nil || AnotherMachine(d.Host, machine) || o.Machine != "" && machine != "" && o.Machine != machine {
		return nil
	}
	return o
}

// storedPreview is an answer in its stored form, gzipped JSON.
type storedPreview struct {
	V int `json:"v"`
	Preview
}

// previewFormat is the version of answers that this package writes. It reads no newer one.
const previewFormat = 1

// EncodePreview packs an answer. If it is too large, diffs are removed first, then changes, from the end.
func EncodePreview(p Preview) ([]byte, error) {
	p = p.clipped()
	for diffs := len(p.Changes); ; {
		b, err := pack(storedPreview{previewFormat, p})
		if err != nil {
			return nil, fmt.Errorf("cannot encode the preview %s: %w", p.Order, err)
		}
		switch n := len(p.Changes); {
		case len(b) <= maxPreviewBytes:
			return b, nil
		case diffs > n/4:
			diffs /= 2
			for i := diffs; i < n; i++ {
				c := &p.Changes[i]
				c.Cut, c.Diff = c.Cut || c.Diff != "", ""
			}
		case n > 0:
			p.Left += n - n/2
			p.Changes = p.Changes[:n/2]
			diffs = n / 2
		default:
			return nil, fmt.Errorf("cannot encode the preview %s: its bare record is larger than %d bytes", p.Order, maxPreviewBytes)
		}
	}
}

// clipped returns a copy of p whose texts have their limits.
func (p Preview) clipped() Preview {
	p.Problem = p.Problem.Clipped(4 * maxMessage)
	p.Left = max(p.Left, 0) + max(len(p.Changes)-maxChanges, 0)
	p.Changes = slices.Clone(p.Changes[:min(len(p.Changes), maxChanges)])
	for i := range p.Changes {
		c := &p.Changes[i]
		if len(c.Diff) > maxDiff {
			c.Diff, c.Cut = clip.Text(c.Diff, maxDiff), true
		}
		c.Resource, c.Status, c.File = clip.Text(c.Resource, maxValue), clip.Text(c.Status, maxValue), clip.Text(c.File, maxValue)
		c.Properties = slices.Clone(c.Properties[:min(len(c.Properties), maxParts)])
		c.Messages = slices.Clone(c.Messages[:min(len(c.Messages), maxParts)])
		for j := range c.Properties {
			v := &c.Properties[j]
			v.Property, v.Old, v.New = clip.Text(v.Property, maxValue), clip.Text(v.Old, maxValue), clip.Text(v.New, maxValue)
		}
		for j, m := range c.Messages {
			c.Messages[j] = clip.Text(m, maxMessage)
		}
	}
	return p
}

// DecodePreview unpacks the output of EncodePreview. It never reads more than 1 MiB and never panics.
func DecodePreview(b []byte) (Preview, error) {
	var s storedPreview
	err := unpack(b, &s)
	if s.V > previewFormat {
		return Preview{}, fmt.Errorf("cannot decode the preview: its format %d is newer than this program's %d; upgrade pulley", s.V, previewFormat)
	}
	if err != nil {
		return Preview{}, fmt.Errorf("cannot decode the preview: %w", err)
	}
	return s.Preview.clipped(), nil
}

package data

import (
	"strings"

	"pulley/hieradata"
	"pulley/internal/clip"
	"pulley/internal/desired/targets"
)

// Difference is a key whose value differs between two states of a layer.
type Difference struct {
	Layer hieradata.Layer  `json:"layer"`
	Key   string           `json:"key"`
	From  *hieradata.Value `json:"from,omitempty"` // nil: the layer lacks the key
	To    *hieradata.Value `json:"to,omitempty"`
	// The ids of the recipients of secrets.
	FromSecret string `json:"from_secret,omitempty"`
	ToSecret   string `json:"to_secret,omitempty"`
}

func differences(layer hieradata.Layer, from, to []byte) (all []Difference, err error) {
	diffs, err := hieradata.Differences(from, to)
	for _, d := range diffs {
		one := Difference{Layer: layer, Key: d.Key, From: d.From, To: d.To}
		if d.From != nil {
			one.FromSecret, _, _ = d.From.Secret()
		}
		if d.To != nil {
			one.ToSecret, _, _ = d.To.Secret()
		}
		all = append(all, one)
	}
	return all, err
}

// secretChanged reports whether a secret differs from another one to the same recipient.
func (d Difference) secretChanged() bool { return d.ToSecret != "" && d.FromSecret == d.ToSecret }

// hidden returns the difference without ciphertexts.
func (d Difference) hidden() Difference {
	if d.FromSecret != "" {
		d.From = &hieradata.Value{}
	}
	if d.ToSecret != "" {
		d.To = &hieradata.Value{}
	}
	return d
}

// Lines returns the difference as YAML, with - before what goes and + before what comes. Of a secret it shows the recipient.
func (d Difference) Lines() (lines []string) {
	for _, one := range []struct {
		sign   string
		value  *hieradata.Value
		secret string
	}{{"-", d.From, d.FromSecret}, {"+", d.To, d.ToSecret}} {
		if one.value == nil {
			continue
		}
		text := one.value.String()
		switch {
		case one.secret != "" && one.sign == "+" && d.secretChanged():
			text = "changed " + secretTo(one.secret)
		case one.secret != "":
			text = secretTo(one.secret)
		}
		if one.value.IsBlock() {
			lines = append(lines, one.sign+" "+d.Key+":")
			for line := range strings.Lines(text) {
				lines = append(lines, one.sign+"   "+strings.TrimSuffix(line, "\n"))
			}
			continue
		}
		lines = append(lines, one.sign+" "+d.Key+": "+text)
	}
	return lines
}

// maxEditBytes bounds a value in the history.
const maxEditBytes = 256

// historyEdit describes differences for the history: the first one, and how many follow.
func historyEdit(diffs []Difference) *targets.Edit {
	if len(diffs) == 0 {
		return nil
	}
	first := diffs[0]
	edit := &targets.Edit{Layer: first.Layer, Key: first.Key, More: len(diffs) - 1}
	if first.From != nil {
		edit.From = clip.Line(onLine(*first.From), maxEditBytes)
	}
	if first.To != nil {
		edit.To = clip.Line(onLine(*first.To), maxEditBytes)
	}
	if first.secretChanged() {
		edit.To = "changed " + edit.To
	}
	return edit
}

// shown returns a value for people: of a secret, the id of its recipient.
func shown(v hieradata.Value) string {
	if recipient, _, is := v.Secret(); is {
		return secretTo(recipient)
	}
	return v.String()
}

func secretTo(recipient string) string { return "secret, encrypted to " + recipient }

// onLine is shown on one line: lists and mappings in flow style.
func onLine(v hieradata.Value) string {
	if !v.IsBlock() {
		return shown(v)
	}
	flow, err := v.MarshalJSON()
	if err != nil {
		return shown(v)
	}
	return string(flow)
}

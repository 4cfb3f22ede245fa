package userdata

import (
	"fmt"
	"strings"

	"pulley/internal/firstboot"
)

// MaxSizeBytes is what every cloud accepts as userdata; EC2 allows the least.
const MaxSizeBytes = 16 << 10

// Form is how a machine is handed its userdata.
type Form string

// The forms. All of them lead to the same files on the machine.
const (
	Script      Form = "script"       // a shell script: for every cloud, and for a person at a terminal
	CloudConfig Form = "cloud-config" // cloud-init's own YAML, which can be merged with more of it
	Multipart   Form = "multipart"    // the script, and a part that cloud-init runs at every boot
)

// Forms are all of them, the usual one first.
var Forms = []Form{Script, CloudConfig, Multipart}

// Render returns the userdata of a machine in a form. A plan that a first boot could not use is an error, as is a result
// above MaxSizeBytes.
func Render(p firstboot.Plan, form Form) ([]byte, error) {
	text, err := render(p, form)
	if err != nil {
		return nil, fmt.Errorf("cannot render userdata of %s: %w", subject(p), err)
	}
	return text, nil
}

func render(plan firstboot.Plan, form Form) ([]byte, error) {
	p, err := newParts(plan)
	if err != nil {
		return nil, err
	}
	var text []byte
	switch form {
	case Script:
		text, err = p.script(true)
	case CloudConfig:
		text, err = p.cloudConfig()
	case Multipart:
		text, err = p.multipart()
	default:
		return nil, fmt.Errorf("there is no form %q; there are %s", form, listed(Forms))
	}
	if err == nil && len(text) > MaxSizeBytes {
		err = fmt.Errorf("it would be %d bytes, and clouds take at most %d (%s)", len(text), MaxSizeBytes, p.sizes())
	}
	return text, err
}

// subject names what a machine becomes.
func subject(p firstboot.Plan) string {
	if p.Node != "" {
		return fmt.Sprintf("node %q", p.Node)
	}
	return fmt.Sprintf("a node of role %q", p.Role)
}

func listed(forms []Form) string {
	words := make([]string, len(forms))
	for i, f := range forms {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

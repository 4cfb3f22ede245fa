package userdata

import (
	"fmt"

	"pulley/internal/firstboot"
)

// maxSizeBytes is the maximum size of userdata that every cloud accepts; EC2 has the lowest limit.
const maxSizeBytes = 16 << 10

// Form is a format of userdata.
type Form string

// The forms. All of them write the same files on the machine.
const (
	Script      Form = "script"       // a shell script, for every cloud and for a terminal
	CloudConfig Form = "cloud-config" // cloud-init's own YAML, which can be merged with other YAML
	Multipart   Form = "multipart"    // the script, and a part that cloud-init runs at every boot
)

// Forms are all forms, the default first.
var Forms = []Form{Script, CloudConfig, Multipart}

// Render returns the userdata of a machine in a form. A plan that a first boot cannot use is an error, as is a result
// above maxSizeBytes.
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
		return nil, fmt.Errorf("there is no form %q", form)
	}
	if err == nil && len(text) > maxSizeBytes {
		err = fmt.Errorf("it would be %d bytes, and clouds take at most %d (%s)", len(text), maxSizeBytes, p.sizes())
	}
	return text, err
}

// subject names the node or the role of the machine.
func subject(p firstboot.Plan) string {
	if p.Node != "" {
		return fmt.Sprintf("node %q", p.Node)
	}
	return fmt.Sprintf("a node of role %q", p.Role)
}

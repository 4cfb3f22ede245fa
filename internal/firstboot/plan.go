package firstboot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"pulley/internal/pattern"

	"gopkg.in/yaml.v3"
)

// PlanPath is the path of the plan that userdata writes, below the machine's root. It contains the join token: mode
// 0600.
const PlanPath = "etc/pulley/first-boot.yaml"

// cloud-init keeps a script of userdata below its folder of the instance, and writes it again at each boot. With the mark in place, the part of
// userdata that resumes a first boot does not start it.
const (
	CloudScript = "var/lib/cloud/instance/scripts/pulley-first-boot.sh"
	CloudMark   = "var/lib/cloud/instance/sem/pulley_left"
)

// maxPlanBytes is the maximum size of a plan; complete userdata has 16 KiB.
const maxPlanBytes = 64 << 10

// ParsePlan reads the plan of a machine; file is its name in errors. Errors contain the line.
func ParsePlan(file string, b []byte) (Plan, error) {
	var p Plan
	if len(b) > maxPlanBytes {
		return Plan{}, fmt.Errorf("cannot read %s: it is larger than %d bytes", file, maxPlanBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err := dec.Decode(&p)
	if errors.Is(err, io.EOF) {
		return Plan{}, fmt.Errorf("cannot read %s: it is empty\nits keys are %s", file, planKeys())
	}
	if err == nil && dec.Decode(new(any)) == nil {
		err = errors.New("it has a second document, which would be ignored")
	}
	if err != nil {
		return Plan{}, fmt.Errorf("cannot read %s: %s\nits keys are %s", file, yamlProblem(err), planKeys())
	}
	if problems := p.problemsOnMachine(); len(problems) > 0 {
		problem := problems[0]
		text := problem.Error()
		if problem.Advice != "" {
			text += "\n" + problem.Advice
		}
		return Plan{}, fmt.Errorf("cannot use %s: %s%s", file, lineOf(b, problem.Field), text)
	}
	return p, nil
}

// planKeys lists the keys of the file for an error.
func planKeys() string {
	var keys []string
	for _, f := range new(Plan).Fields() {
		keys = append(keys, f.Name)
	}
	return strings.Join(keys, ", ")
}

// Encode writes the plan in the format of ParsePlan.
func (p Plan) Encode() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("cannot encode the plan of a first boot: %w", err)
	}
	return out.Bytes(), enc.Close()
}

// lineOf returns "line N: " for the position of a field in the file, or of the part that contains it; "" if neither is
// in the file.
func lineOf(b []byte, field string) string {
	var root yaml.Node
	if yaml.Unmarshal(b, &root) != nil || len(root.Content) == 0 {
		return ""
	}
	n, line := root.Content[0], 0
path:
	for _, key := range strings.Split(field, ".") {
		if at, err := strconv.Atoi(key); n.Kind == yaml.SequenceNode && err == nil && at < len(n.Content) {
			n = n.Content[at]
			line = n.Line
			continue
		}
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				line, n = n.Content[i].Line, n.Content[i+1]
				continue path
			}
		}
		break
	}
	if line == 0 {
		return ""
	}
	return fmt.Sprintf("line %d: ", line)
}

// yamlTypes are the names of Go in an error of yaml.v3.
var yamlTypes = pattern.Lazy(` (?:in|into) (?:type )?(?:firstboot\.\w+|map\[string\]string|\[\]string)`)

// yamlProblem returns an error of yaml.v3 in plain words.
func yamlProblem(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text = strings.ReplaceAll(text, "\n  ", "; ")
	text = strings.ReplaceAll(text, "field ", "key ")
	text = yamlTypes().ReplaceAllString(text, "")
	return strings.Join(strings.Fields(text), " ")
}

package environments

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/model"
)

// Classification is what the external node classifier of Puppet servers answers: classes with their parameters, and variables of
// the top scope. Values have the types of Hiera data.
type Classification struct {
	Classes    map[string]Values `json:"classes,omitempty"`
	Parameters Values            `json:"parameters,omitempty"`
}

// Values are values by name.
type Values = map[string]hieradata.Value

// The variables of the top scope that Classify adds.
const (
	VariableEnvironment = "pulley_environment" // the node's environment in Pulley
	VariableRole        = "pulley_role"
	VariableLayers      = "pulley_layers" // the node's layers of live data, the highest first: nodes/web1, roles/web, …

	ownVariables = "pulley_"
)

// AnswerStart is the first line of each answer.
const AnswerStart = "---\n"

// reservedVariables are variables that Puppet sets itself.
var reservedVariables = []string{"facts", "trusted", "server_facts", "environment", "module_name", "caller_module_name", "name", "title"}

// Classify returns the answer of the classifier for a node of a role: the classes and parameters of the environment, of the role and of
// the node. Of the same parameter, the node's value wins over the role's, and this over the environment's.
func (e *Environment) Classify(role, node string) Classification {
	r, _ := e.Role(role)
	of := Classification{Classes: map[string]Values{}, Parameters: Values{}}
	for _, level := range []Classification{e.ENC, r.ENC, e.ByNode[e.plainName(node)].ENC} {
		for class, values := range level.Classes {
			if of.Classes[class] == nil {
				of.Classes[class] = Values{}
			}
			maps.Copy(of.Classes[class], values)
		}
		maps.Copy(of.Parameters, level.Parameters)
	}
	of.Parameters[VariableEnvironment] = hieradata.Text(e.Ref().String())
	of.Parameters[VariableRole] = hieradata.Text(role)
	of.Parameters[VariableLayers] = e.layersOf(role, node)
	return of
}

// plainName returns a node's name without the stack.
func (e *Environment) plainName(node string) string {
	if e.Stack == "" {
		return node
	}
	return strings.TrimSuffix(node, "_"+e.Stack)
}

// layersOf lists the layers of live data that a node sees, the highest first.
func (e *Environment) layersOf(role, node string) hieradata.Value {
	order := e.DataLayers
	if len(order) == 0 {
		order = standardLayers
	}
	var layers []hieradata.Value
	add := func(l hieradata.Layer) { layers = append(layers, hieradata.Text(string(l))) }
	for _, name := range order {
		switch {
		case name == "node":
			add(hieradata.ForNode(node))
		case name == "role" && role == "": // the node has none
		case name == "role":
			add(hieradata.ForRole(role))
		case name == "environment" || name == "common":
			add(hieradata.Layer(name))
		default:
			if value := e.AttributeOf(role, node, name); value != "" {
				add(hieradata.ForAttribute(name, value))
			}
		}
	}
	return hieradata.List(layers...)
}

// YAML renders the answer as Puppet reads it (https://www.puppet.com/docs/puppet/8/nodes_external#enc_output_format).
func (c Classification) YAML() []byte {
	classes := Values{}
	for name, values := range c.Classes {
		classes[name] = hieradata.Mapping(values)
	}
	return []byte(AnswerStart + hieradata.Mapping(Values{"classes": hieradata.Mapping(classes), "parameters": hieradata.Mapping(c.Parameters)}).String() + "\n")
}

// classification reads a mapping with classes and parameters. Classes without parameters may be a list of their names.
func (s scope) classification(n *yaml.Node, what string, into *Classification) {
	s.p.mapping(n, what, []string{"classes", "parameters"}, func(key, value *yaml.Node) {
		at := what + "." + key.Value
		s.p.places[spot{s.role, at}] = value
		if key.Value == "parameters" {
			into.Parameters = s.values(value, at)
			return
		}
		into.Classes = map[string]Values{}
		if value.Kind == yaml.SequenceNode {
			for _, item := range value.Content {
				if name := s.p.text(item, at+" has an item that"); name != "" {
					s.p.places[spot{s.role, at + "." + name}] = item
					into.Classes[name] = nil
				}
			}
			return
		}
		s.p.mapping(value, at, nil, func(name, parameters *yaml.Node) {
			s.p.places[spot{s.role, at + "." + name.Value}] = name
			into.Classes[name.Value] = nil
			if parameters.Tag != "!!null" {
				into.Classes[name.Value] = s.values(parameters, at+"."+name.Value)
			}
		})
	})
	into.tidy()
}

// values reads a mapping with any values.
func (s scope) values(n *yaml.Node, what string) Values {
	read := Values{}
	s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
		s.p.places[spot{s.role, what + "." + key.Value}] = key
		if hasRefused(value) {
			return // document has reported it
		}
		v, err := hieradata.FromYAML(value)
		var bad *hieradata.SyntaxError
		switch {
		case errors.As(err, &bad):
			s.p.problemAt(bad.Line, bad.Column, bad.Advice, "%s: %s", what+"."+key.Value, bad.Problem)
		case err != nil:
			s.p.problem(value, "", "%s: %v", what+"."+key.Value, err)
		default:
			read[key.Value] = v
		}
	})
	return read
}

// hasRefused reports whether a value has parts of YAML that are refused everywhere in the file.
func hasRefused(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" || n.Style&yaml.TaggedStyle != 0 || slices.ContainsFunc(n.Content, hasRefused)
}

// tidy makes empty mappings nil.
func (c *Classification) tidy() {
	for name, values := range c.Classes {
		if len(values) == 0 {
			c.Classes[name] = nil
		}
	}
	if len(c.Classes) == 0 {
		c.Classes = nil
	}
	if len(c.Parameters) == 0 {
		c.Parameters = nil
	}
}

// settings returns all values as text.
func (c Classification) settings(path string) (out []setting) {
	for _, class := range slices.Sorted(maps.Keys(c.Classes)) {
		of := path + ".classes." + class
		if len(c.Classes[class]) == 0 {
			out = append(out, setting{of, "{}"})
		}
		out = append(out, settingsOfValues(of, c.Classes[class])...)
	}
	return append(out, settingsOfValues(path+".parameters", c.Parameters)...)
}

func settingsOfValues(path string, values Values) (out []setting) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text, _ := values[name].MarshalJSON() // of a value that was read: it cannot fail
		out = append(out, setting{path + "." + name, string(text)})
	}
	return out
}

func (c Classification) isZero() bool { return len(c.Classes) == 0 && len(c.Parameters) == 0 }

// classifies reports whether the environment has settings of the classifier.
func (e *Environment) classifies() bool {
	return !e.ENC.isZero() || slices.ContainsFunc(e.Roles, func(r Role) bool { return !r.ENC.isZero() }) ||
		slices.ContainsFunc(slices.Collect(maps.Values(e.ByNode)), func(n NodeSettings) bool { return !n.ENC.isZero() })
}

// checkClassification checks the names of classes, parameters and variables.
func (c checker) checkClassification(at spot, of Classification) {
	below := func(path ...string) spot {
		return spot{at.role, strings.Join(append([]string{at.field}, path...), ".")}
	}
	if !of.isZero() && len(c.Puppet.Servers) == 0 {
		c.add(at, "add `puppet: {servers: …}`; nodes whose release has a tree read external_nodes/ of the release", "%s concerns Puppet servers, and the environment has none", at.field)
	}
	for _, class := range slices.Sorted(maps.Keys(of.Classes)) {
		c.flaw(below("classes", class), "class "+model.Quoted(class), formFlaw("class", "ntp or role::web", class))
		for _, name := range slices.Sorted(maps.Keys(of.Classes[class])) {
			c.flaw(below("classes", class, name), fmt.Sprintf("parameter %s of class %s", model.Quoted(name), model.Quoted(class)), formFlaw("variable", "servers", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(of.Parameters)) {
		in := below("parameters", name)
		c.flaw(in, in.field, formFlaw("variable", "datacenter", name))
		if slices.Contains(reservedVariables, name) || strings.HasPrefix(name, ownVariables) {
			c.add(in, "give it another name", "%s is a variable that Puppet or Pulley sets itself", in.field)
		}
	}
}

package puppet

import (
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// deref follows one alias. YAML has no alias of an alias.
func deref(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields returns the entries of a mapping, whatever Ruby class its tag names, or an empty map for another node. Older
// reports spell keys as Ruby symbols or instance variables.
func fields(n *yaml.Node) map[string]*yaml.Node {
	m := map[string]*yaml.Node{}
	if n = deref(n); n == nil || n.Kind != yaml.MappingNode {
		return m
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		m[strings.TrimLeft(scalar(n.Content[i]), ":@")] = n.Content[i+1]
	}
	return m
}

// items returns the elements of a sequence, or none for another node.
func items(n *yaml.Node) []*yaml.Node {
	if n = deref(n); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// scalar returns the text of a scalar, without the colon of a Ruby symbol; "" for null and other nodes.
func scalar(n *yaml.Node) string {
	n = deref(n)
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	if n.Style == 0 && len(n.Value) > 1 && n.Value[0] == ':' {
		return n.Value[1:]
	}
	return n.Value
}

// scalars returns the texts of a sequence.
func scalars(n *yaml.Node) []string {
	var all []string
	for _, item := range items(n) {
		all = append(all, scalar(item))
	}
	return all
}

// number returns an integer, or 0 for a value that is not a valid count.
func number(n *yaml.Node) int {
	i, err := strconv.ParseInt(scalar(n), 10, 32)
	if err != nil || i < 0 {
		return 0
	}
	return int(i)
}

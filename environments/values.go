package environments

import (
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// text returns a text value, or "" after it reported the problem.
func (p *parser) text(n *yaml.Node, what string) string {
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		p.wrongKind(n, what, "text")
	case n.Tag != "!!str":
		p.problem(n, fmt.Sprintf("put quotes around it: %q", n.Value), "%s is %s, not text", what, kindOf(n))
	case n.Value == "":
		p.problem(n, "leave the line out if there is none", "%s is empty", what)
	default:
		return n.Value
	}
	return ""
}

// count returns a number, or 0 after it reported the problem. YAML readers disagree about 017, 0o17, 1_000 and similar
// forms. Only plain decimal digits are accepted.
func (p *parser) count(n *yaml.Node, what string) int {
	digits := strings.TrimPrefix(n.Value, "-")
	plain := digits != "" && strings.Trim(digits, "0123456789") == "" && (digits[0] != '0' || n.Value == "0")
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		p.wrongKind(n, what, "an integer")
	case n.Tag == "!!str" && plain:
		p.problem(n, "write it without quotes: "+n.Value, "%s is text, not an integer", what)
	case plain:
		if v, err := strconv.Atoi(n.Value); err == nil {
			return v // of any size: check enforces the limits
		}
		p.problem(n, "", "%s %s is out of range", what, quoted(n.Value))
	case n.Tag == "!!int":
		p.problem(n, decimal(n.Value), "%s %s is not written as a decimal integer", what, quoted(n.Value))
	default:
		p.problem(n, "", "%s is %s, not an integer", what, kindOf(n))
	}
	return 0
}

// decimal suggests the decimal form of an integer that YAML also accepts in other forms.
func decimal(value string) string {
	digits := strings.TrimLeft(value, "+-")
	if len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0123456789_") == "" {
		return "without the leading zero: readers of YAML disagree about what it means"
	}
	v, err := strconv.ParseInt(value, 0, 64)
	if err != nil {
		return "use the digits 0 to 9"
	}
	return "write " + strconv.FormatInt(v, 10)
}

// wrongKind reports that n has the wrong type. It skips aliases: document has reported them.
func (p *parser) wrongKind(n *yaml.Node, what, want string) {
	switch {
	case n.Kind == yaml.AliasNode:
	case n.Tag == "!!null":
		p.problem(n, "", "%s has no value, it has to be %s", what, want)
	case n.Tag == "!!str" && strings.Contains(n.Value, ":"):
		p.problem(n, "put a space after the colon", "%s is %s, it has to be %s", what, kindOf(n), want)
	default:
		p.problem(n, "", "%s is %s, it has to be %s", what, kindOf(n), want)
	}
}

// kindOf names the YAML type of n, with its value if that is short.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	names := map[string]string{
		"!!str": "the text", "!!int": "the integer", "!!float": "the decimal number", "!!bool": "the boolean", "!!timestamp": "the date",
	}
	if name, ok := names[n.Tag]; ok {
		return name + " " + quoted(n.Value)
	}
	return "the value " + quoted(n.Value)
}

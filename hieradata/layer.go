package hieradata

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"

	"pulley/internal/pattern"
)

// maxLayerBytes is the maximum size of a layer's canonical bytes, which are one value in etcd.
const maxLayerBytes = 512 << 10

// Layer names one layer of an environment: "common", "environment", "roles/<role>", "nodes/<node>", or
// "<attribute>/<value>".
type Layer string

// The layers of every node of an environment.
const (
	Common      Layer = "common"      // lowest: for all nodes
	Environment Layer = "environment" // for all nodes of this environment
)

// ForRole returns the name of the layer of a role's nodes.
func ForRole(role string) Layer { return Layer("roles/" + role) }

// ForNode returns the name of one node's layer.
func ForNode(node string) Layer { return Layer("nodes/" + node) }

// ForAttribute returns the name of the layer of the nodes that have this value of an attribute.
func ForAttribute(name, value string) Layer { return Layer(name + "/" + value) }

// Attribute returns the attribute of a layer and its value; ok is false for any other layer.
func (l Layer) Attribute() (name, value string, ok bool) {
	name, value, ok = strings.Cut(string(l), "/")
	if !ok || name == "roles" || name == "nodes" {
		return "", "", false
	}
	return name, value, true
}

// Flags returns the flags of commands that select a layer, for hints.
func (l Layer) Flags() string {
	switch kind, name, _ := strings.Cut(string(l), "/"); {
	case l == Common:
		return " --common"
	case kind == "roles":
		return " --role " + name
	case kind == "nodes":
		return " --node " + name
	case name != "":
		return " --attribute " + kind + "=" + name
	}
	return ""
}

// level returns the name of the level that a layer is on.
func (l Layer) level() string {
	switch kind, _, _ := strings.Cut(string(l), "/"); kind {
	case "roles":
		return "role"
	case "nodes":
		return "node"
	default:
		return kind
	}
}

// CompareLayers orders layers in lists, the same everywhere: nodes, roles, attributes, environment, common; within each by
// name. Which one wins for a node is up to its Hierarchy.
func CompareLayers(a, b Layer) int {
	return cmp.Or(a.place()-b.place(), strings.Compare(string(a), string(b)))
}

func (l Layer) place() int {
	switch l.level() {
	case "node":
		return 0
	case "role":
		return 1
	case "environment":
		return 3
	case "common":
		return 4
	}
	return 2
}

// segment has no count in the pattern: it would take a millisecond to compile.
var segment = pattern.Lazy(`^[a-z0-9][a-z0-9._-]*$`)

const maxSegment = 253 // bytes, as in a hostname

// Check returns an error if the name is invalid.
func (l Layer) Check() error {
	if l == Common || l == Environment {
		return nil
	}
	kind, name, _ := strings.Cut(string(l), "/")
	if (kind == "roles" || kind == "nodes") && len(name) <= maxSegment && segment().MatchString(name) {
		return nil
	}
	if CheckAttribute(kind, name) == nil {
		return nil
	}
	return fmt.Errorf("%.100q is not a layer: expected common, environment, roles/<role>, nodes/<node> or <attribute>/<value>", string(l))
}

// The forms of attributes; package environments has them for its schema, too.
var attributeForm = pattern.Lazy(`^[a-z][a-z0-9_]*$`)

const maxAttribute = 63 // bytes of a name or a value

// isAttribute reports whether an attribute may have this name: its layers are none of the others.
func isAttribute(name string) bool {
	return !isReserved(name) && len(name) <= maxAttribute && attributeForm().MatchString(name)
}

func isReserved(name string) bool {
	switch name {
	case "node", "nodes", "role", "roles", "environment", "common":
		return true
	}
	return false
}

// CheckAttribute returns an error unless name and value are those of an attribute.
func CheckAttribute(name, value string) error {
	switch {
	case isReserved(name):
		return fmt.Errorf("%s is not an attribute: every environment has such layers", name)
	case !isAttribute(name):
		return fmt.Errorf("%.100q is not the name of an attribute: it may contain small letters, digits and _, like site", name)
	}
	if len(value) > maxAttribute || !segment().MatchString(value) {
		return fmt.Errorf("%.100q is not a value of attribute %s: it may contain small letters, digits and . _ -, like ams", value, name)
	}
	return nil
}

// Digest returns the id of a layer: the sha256 of its canonical bytes as 64 hex digits.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

var digestForm = pattern.Lazy(`^[0-9a-f]{64}$`)

//go:embed all:sample
var sample embed.FS

// Sample returns the data that `pulley init` writes to the folder hieradata of a new control repository.
func Sample() fs.FS {
	sub, err := fs.Sub(sample, "sample")
	if err != nil {
		return sample // impossible: the name is a valid path
	}
	return sub
}

package hieradata

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// maxLayerBytes is the maximum size of a layer's canonical bytes, which are one value in etcd.
const maxLayerBytes = 512 << 10

// Layer names one layer of an environment: "common", "environment", "roles/<role>" or "nodes/<node>".
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

// Order returns the layers of one node; the first that has a key wins. A node without a role has no role layer.
func Order(role, node string) []Layer {
	order := make([]Layer, 0, 4)
	for _, slot := range slots(role, node) {
		if slot.layer != "" {
			order = append(order, slot.layer)
		}
	}
	return order
}

// Rank returns the priority of a layer: 0 for a node's, which is the highest, 1 for a role's, 2 for the environment's,
// 3 for common.
func (l Layer) Rank() int {
	switch {
	case l == Common:
		return 3
	case l == Environment:
		return 2
	case strings.HasPrefix(string(l), "roles/"):
		return 1
	}
	return 0
}

// segment has no count in the pattern: it would take a millisecond to compile.
var segment = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

const maxSegment = 253 // bytes, as in a hostname

// validate returns an error if a layer's name is invalid.
func (l Layer) validate() error {
	if l == Common || l == Environment {
		return nil
	}
	kind, name, _ := strings.Cut(string(l), "/")
	if (kind == "roles" || kind == "nodes") && len(name) <= maxSegment && segment.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%.100q is not a layer: expected common, environment, roles/<role> or nodes/<node>", string(l))
}

// Digest returns the id of a layer: the sha256 of its canonical bytes as 64 hex digits.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

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

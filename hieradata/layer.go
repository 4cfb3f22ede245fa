package hieradata

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// MaxLayerBytes is how large the canonical bytes of one layer may be; they are one value in etcd.
const MaxLayerBytes = 512 << 10

// Layer names one layer of an environment: "common", "environment", "roles/<role>" or "nodes/<node>".
type Layer string

// The layers that every node of an environment has.
const (
	Common      Layer = "common"      // lowest: for all nodes
	Environment Layer = "environment" // for all nodes of this environment
)

// ForRole names the layer of all nodes of a role.
func ForRole(role string) Layer { return Layer("roles/" + role) }

// ForNode names the layer of one node.
func ForNode(node string) Layer { return Layer("nodes/" + node) }

// Order lists the layers that concern one node; the first that has a key wins. A node without a role has no role layer.
func Order(role, node string) []Layer {
	order := make([]Layer, 0, 4)
	for _, slot := range slots(role, node) {
		if slot.layer != "" {
			order = append(order, slot.layer)
		}
	}
	return order
}

// Rank is where a layer stands: 0 for a node's, which wins, then 1 for a role's, 2 for the environment's, 3 for common.
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

var segment = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`) // a pattern that counts takes a millisecond to compile

const maxSegment = 253 // bytes, as of a host's name

// Validate says what is wrong with a layer's name.
func (l Layer) Validate() error {
	if l == Common || l == Environment {
		return nil
	}
	kind, name, _ := strings.Cut(string(l), "/")
	if (kind == "roles" || kind == "nodes") && len(name) <= maxSegment && segment.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%.100q is not a layer: expected common, environment, roles/<role> or nodes/<node>", string(l))
}

// Digest identifies a layer by its canonical bytes: sha256 as 64 hex digits.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// CheckSize refuses a layer that etcd should not hold.
func CheckSize(l Layer, canonical []byte) error {
	if len(canonical) <= MaxLayerBytes {
		return nil
	}
	return fmt.Errorf("layer %s is %d bytes, and a layer may be at most %d", l, len(canonical), MaxLayerBytes)
}

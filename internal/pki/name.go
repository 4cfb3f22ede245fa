package pki

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
)

// Kind is the kind of a certificate's holder.
type Kind string

// The kinds.
const (
	KindNode     Kind = "node"
	KindOperator Kind = "operator"
	KindServe    Kind = "serve"
)

// Name is the holder of a certificate. Its text is the certificate's common name and etcd's user:
//
//	<prefix>/node/<environment>/<node>/<incarnation>
//	<prefix>/operator/<name>/<incarnation>
//	<prefix>/serve/<host>/<incarnation>
//
// It may exceed the 64 characters of a common name in X.520: Go, and therefore etcd, accepts that.
type Name struct {
	Prefix      string // first part of the fleet's keys, without surrounding slashes; it may have several segments
	Kind        Kind
	Environment string // of a node; with its stack, as in dev@t42
	Subject     string // the node, the operator, or the host of a serve
	Incarnation string // 16 hexadecimal digits, new for each join: a revoked user is never valid again
}

// String returns the name as text. Check reports whether ParseName can read it.
func (n Name) String() string {
	parts := []string{n.Prefix, string(n.Kind)}
	if n.Kind == KindNode {
		parts = append(parts, n.Environment)
	}
	return strings.Join(append(parts, n.Subject, n.Incarnation), "/")
}

// Role returns the name without its incarnation. A new join does not change it; it is etcd's role of a node.
func (n Name) Role() string { return strings.TrimSuffix(n.String(), "/"+n.Incarnation) }

// Check rejects an invalid name: an empty part, a byte other than letters, digits and -_.@+, or a prefix whose end
// looks like a kind.
func (n Name) Check() error {
	if back, err := ParseName(n.String()); err != nil {
		return err
	} else if back != n {
		return fmt.Errorf("cannot use %q as a name: it would be read as %s %s", n.String(), back.Kind, back.Subject)
	}
	return nil
}

// ParseName parses the result of String.
func ParseName(cn string) (Name, error) {
	fail := func(problem string) (Name, error) {
		return Name{}, fmt.Errorf("cannot read %q as the name of a node, an operator or a serve: %s", cn, problem)
	}
	parts := strings.Split(cn, "/")
	for _, p := range parts {
		if p == "" || len(p) > maxPartBytes || strings.Trim(p, partBytes) != "" {
			return fail(fmt.Sprintf("a part has 1 to %d letters, digits and -_.@+", maxPartBytes))
		}
	}
	last := len(parts) - 1
	n := Name{Incarnation: parts[last]}
	if !isIncarnation(n.Incarnation) {
		return fail("its last part is not an incarnation of 16 hexadecimal digits")
	}
	switch {
	case last >= 4 && Kind(parts[last-3]) == KindNode:
		n.Prefix, n.Kind = strings.Join(parts[:last-3], "/"), KindNode
		n.Environment, n.Subject = parts[last-2], parts[last-1]
	case last >= 3 && (Kind(parts[last-2]) == KindOperator || Kind(parts[last-2]) == KindServe):
		n.Prefix, n.Kind, n.Subject = strings.Join(parts[:last-2], "/"), Kind(parts[last-2]), parts[last-1]
	default:
		return fail("its kind is missing")
	}
	return n, nil
}

const (
	maxPartBytes     = 253 // the maximum of a host name
	partBytes        = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@+"
	incarnationBytes = 8
)

func isIncarnation(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == incarnationBytes && s == strings.ToLower(s)
}

// NewIncarnation returns 16 random hexadecimal digits.
func NewIncarnation() string {
	b := make([]byte, incarnationBytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

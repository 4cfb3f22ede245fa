// Package stablehash owns the hash that spreads nodes over time and over servers.
//
// It must never be used for secrets or signatures: anybody can compute it.
package stablehash

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
)

// Sum returns the same evenly distributed number for the same parts, on every machine and in every version. Boundaries
// between parts count: Sum("ab", "c") and Sum("a", "bc") differ.
//
// The names of nodes differ in a digit or two. FNV leaves similar names with similar sums.
func Sum(parts ...string) uint64 {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(p)))) // a hash never fails
		_, _ = io.WriteString(h, p)
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// Fraction returns Sum as a number in [0, 1).
func Fraction(parts ...string) float64 {
	const bits = 53 // of a float64's mantissa
	return float64(Sum(parts...)>>(64-bits)) / (1 << bits)
}

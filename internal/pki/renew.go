package pki

import (
	"bytes"
	"crypto/x509"
	"strconv"
	"time"

	"pulley/internal/stablehash"
)

// clockSkew is the time by which certificates are backdated, for machines with slow clocks.
const clockSkew = time.Hour

// After a rotation each node renews in one slot of every cycle of rotationSlots slots. A node that ticks at least once
// a slot renews within two cycles. A slot is longer than the time between two ticks.
const (
	rotationSlot  = 15 * time.Minute
	rotationSlots = 8
)

// Issued returns the time at which this package made a certificate.
func Issued(leaf *x509.Certificate) time.Time {
	if issued := leaf.NotBefore.Add(clockSkew); issued.Before(leaf.NotAfter) {
		return issued
	}
	return leaf.NotBefore
}

// RenewDue reports whether a node or operator must renew its certificate. One reason is its age: between 5/12 and 4/12
// of its life are left. The other is a rotation: the servers' certificate has another CA and the slot of this name has
// come. serverIssuer is the authority key ID of the servers' certificate; nil means unknown.
func RenewDue(leaf *x509.Certificate, serverIssuer []byte, name string, now time.Time) bool {
	life := leaf.NotAfter.Sub(Issued(leaf))
	early := time.Duration(stablehash.Fraction("renew", name, string(leaf.SerialNumber.Bytes())) * float64(life/12))
	if left := leaf.NotAfter.Sub(now); left < life/3+early {
		return true
	}
	if len(serverIssuer) == 0 || len(leaf.AuthorityKeyId) == 0 || bytes.Equal(serverIssuer, leaf.AuthorityKeyId) {
		return false
	}
	if now.Sub(Issued(leaf)) < life/100 { // otherwise yet another CA would cause a renewal in each tick
		return false
	}
	slot := now.UnixNano() / int64(max(min(rotationSlot, life/100), 1))
	cycle := strconv.FormatInt(slot/rotationSlots, 10)
	return stablehash.Sum("rotation", name, string(serverIssuer), cycle)%rotationSlots == uint64(slot%rotationSlots)
}

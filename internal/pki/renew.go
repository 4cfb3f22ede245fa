package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/binary"
	"hash/fnv"
	"time"
)

// clockSkew is how far back certificates are dated, for machines whose clocks are behind.
const clockSkew = time.Hour

// After a rotation every node throws a dice in each slot of time, so that a fleet renews over some hours; a slot is longer than
// the time between two ticks.
const (
	rotationSlot  = 15 * time.Minute
	rotationSides = 8
)

// Issued is when a certificate of this package was made.
func Issued(leaf *x509.Certificate) time.Time {
	if issued := leaf.NotBefore.Add(clockSkew); issued.Before(leaf.NotAfter) {
		return issued
	}
	return leaf.NotBefore
}

// RenewDue says whether who is to renew a certificate: a third of its life is left, or a little more, as who has it; or the
// servers' certificate is of another CA by now, at some time within hours that is who's own. serverIssuer is the authority key
// id of the servers' certificate, nil when none was seen.
func RenewDue(leaf *x509.Certificate, serverIssuer []byte, who string, now time.Time) bool {
	life := leaf.NotAfter.Sub(Issued(leaf))
	h := hash(who, leaf.SerialNumber.Bytes())
	early := time.Duration(h % uint64(max(life/12, 1)))
	if left := leaf.NotAfter.Sub(now); left < life/3+early {
		return true
	}
	if len(serverIssuer) == 0 || len(leaf.AuthorityKeyId) == 0 || bytes.Equal(serverIssuer, leaf.AuthorityKeyId) {
		return false
	}
	if now.Sub(Issued(leaf)) < life/100 { // should the new one be of another CA too, it is not asked for again and again
		return false
	}
	slot := max(min(rotationSlot, life/100), 1)
	throw := binary.AppendVarint(bytes.Clone(serverIssuer), now.UnixNano()/int64(slot))
	return hash(who, throw)%rotationSides == 0
}

func hash(who string, more []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(who)))) // a hash takes everything
	_, _ = h.Write([]byte(who))
	_, _ = h.Write(more)
	sum := h.Sum64()
	return sum ^ sum>>32 // FNV's low bits depend on few of its input's
}

package pki

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"testing"
	"time"
)

// A node that renews too late loses access. A node that renews too often, or a complete fleet at once, overloads
// serve.
func TestRenewalIsDueInTime(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	issued := now
	ca := open(t, t.TempDir(), Options{Now: func() time.Time { return now }})
	for _, life := range []time.Duration{90 * 24 * time.Hour, 20 * time.Second} {
		leaf := client(t, ca, life).Leaf()
		if got := Issued(leaf); !got.Equal(issued) {
			t.Errorf("issued %s, and it says %s", issued, got)
		}
		dues := map[time.Duration]bool{}
		for i := range 200 {
			who := fmt.Sprint("compute", i)
			due := func(after time.Duration) bool { return RenewDue(leaf, leaf.AuthorityKeyId, who, issued.Add(after)) }
			if due(0) || due(life/2) {
				t.Fatalf("%s renews a certificate of %s in its first half", who, life)
			}
			if !due(life*2/3+time.Nanosecond) || !due(life) || !due(2*life) {
				t.Fatalf("%s does not renew a certificate of %s in its last third", who, life)
			}
			for part := range 100 {
				if at := life * time.Duration(part) / 100; due(at) {
					dues[at] = true
					break
				}
			}
		}
		if len(dues) < 6 {
			t.Errorf("200 nodes begin to renew at %d times", len(dues))
		}
	}
}

// After a rotation each node must renew within two cycles, on every date, and never all of them at once.
func TestRenewalFollowsARotation(t *testing.T) {
	t.Parallel()
	const nodes, days, life = 200, 4 * 366, 90 * 24 * time.Hour
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := range days {
		now := start.AddDate(0, 0, day).Add(time.Duration(day) * 7 * time.Minute) // each time of the day is tried
		issued := now.Add(-10 * 24 * time.Hour)
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(day) + 1), AuthorityKeyId: []byte("old"), NotBefore: issued.Add(-clockSkew), NotAfter: issued.Add(life),
		}
		issuer := []byte("new")
		perSlot := map[int]int{}
		for i := range nodes {
			name := fmt.Sprint("compute", i+1)
			if RenewDue(leaf, issuer, name, issued.Add(life/200)) {
				t.Fatalf("%s renews a certificate that was just made", name)
			}
			if RenewDue(leaf, nil, name, now) || RenewDue(leaf, leaf.AuthorityKeyId, name, now) {
				t.Fatalf("%s renews without a rotation", name)
			}
			slot := 0
			for !RenewDue(leaf, issuer, name, now.Add(time.Duration(slot)*rotationSlot)) {
				if slot++; slot >= 2*rotationSlots {
					t.Fatalf("%s has not renewed in two cycles after a rotation at %s", name, now)
				}
			}
			perSlot[slot]++
		}
		for slot, n := range perSlot {
			if n > nodes/4 {
				t.Errorf("%d of %d nodes renew in slot %d after a rotation at %s", n, nodes, slot, now)
			}
		}
	}
}

// A node whose ticks are rarer than the slots must not miss its slot forever.
func TestRenewalFollowsARotationWithRareTicks(t *testing.T) {
	t.Parallel()
	const life = 90 * 24 * time.Hour
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), AuthorityKeyId: []byte("old"), NotBefore: start.Add(-clockSkew), NotAfter: start.Add(life)}
	for i := range 500 {
		now, ticks := start.Add(10*24*time.Hour), 0
		for !RenewDue(leaf, []byte("new"), fmt.Sprint("compute", i+1), now) {
			now = now.Add(rotationSlots * rotationSlot) // always the same slot of a cycle
			if ticks++; ticks > 100 {
				t.Fatalf("compute%d has not renewed after %d ticks", i+1, ticks)
			}
		}
	}
}

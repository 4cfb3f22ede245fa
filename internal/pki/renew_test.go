package pki

import (
	"fmt"
	"testing"
	"time"
)

// A node that renews too late is shut out; one that renews always wears serve down; all at once do, too.
func TestRenewalIsDueInTime(t *testing.T) {
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

// After a rotation each node comes to the new CA within hours, and not all of them at once.
func TestRenewalFollowsARotation(t *testing.T) {
	now := time.Now()
	ca := open(t, t.TempDir(), Options{Now: func() time.Time { return now }})
	leaf := client(t, ca, 90*24*time.Hour).Leaf()
	issued := now
	now = now.Add(10 * 24 * time.Hour)
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	issuer := client(t, ca, time.Hour).Leaf().AuthorityKeyId
	for i := range 100 {
		if RenewDue(leaf, issuer, fmt.Sprint("compute", i), issued) {
			t.Fatal("a certificate that was made right now is renewed")
		}
	}
	const nodes, step = 1000, 5 * time.Minute
	renewed := map[int]bool{}
	for after := time.Duration(0); after < 24*time.Hour; after += step {
		at := 0
		for i := range nodes {
			who := fmt.Sprint("compute", i)
			if RenewDue(leaf, nil, who, now.Add(after)) || RenewDue(leaf, leaf.AuthorityKeyId, who, now.Add(after)) {
				t.Fatalf("%s renews with no reason", who)
			}
			if !renewed[i] && RenewDue(leaf, issuer, who, now.Add(after)) {
				renewed[i] = true
				at++
			}
		}
		if at > nodes/4 {
			t.Errorf("%d of %d renew at one time", at, nodes)
		}
	}
	if len(renewed) != nodes {
		t.Errorf("%d of %d nodes have renewed after a day", len(renewed), nodes)
	}
}

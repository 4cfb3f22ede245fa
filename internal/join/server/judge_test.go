package server

import (
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/model"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// A second machine gets a node's name only with an operator's new token. The cases are every way to a name with a
// former owner, with the sufficient and the insufficient tokens.
func TestNamesWithFormerOwners(t *testing.T) {
	held := func(machine, key string) *access.Identity {
		return &access.Identity{Node: "controller1", User: "u", Machine: machine, Key: key, Revision: 50, Joined: noon}
	}
	removed := func(machine string, left bool) *access.Identity {
		return &access.Identity{Node: "controller1", Machine: machine, Removed: &access.Removal{At: noon, By: "ann", Why: "broken", Left: left}}
	}
	listed := func(machine string) *model.Host {
		return &model.Host{Node: "controller1", Role: "controller", MachineID: machine}
	}
	gone := &access.Past{Node: "controller2", As: "controller2", Removed: &access.Removal{At: noon, By: "ann"}, Revision: 50}
	inBoot := &access.FirstBoot{Machine: "other", Node: "controller1", Step: "puppet"}
	unlocked := &access.FirstBoot{Machine: "other", Node: "controller1", Unlocked: &access.Revoked{By: "ann"}}
	over := &access.FirstBoot{Machine: "other", Node: "controller1", Finished: noon}
	for name, c := range map[string]struct {
		exact     bool
		minted    int64
		usedUp    bool
		claimed   bool
		identity  *access.Identity
		host      *model.Host
		holder    *access.FirstBoot
		was       *access.Past
		want      join.Reason // "" joins
		again     bool
		duplicate bool
	}{
		"the name is free":                                {minted: 10},
		"the name is free, token used up":                 {minted: 10, usedUp: true, want: join.UsedUpToken},
		"its own, the same key":                           {minted: 10, identity: held("me", "key"), again: true},
		"its own, the same key, used up":                  {minted: 10, usedUp: true, identity: held("me", "key"), again: true},
		"its own, another key, the old token":             {exact: true, minted: 10, identity: held("me", "old"), want: join.NameTaken},
		"its own, another key, a token for the role":      {minted: 60, identity: held("me", "old"), want: join.NameTaken},
		"its own, another key, a new token for it":        {exact: true, minted: 60, identity: held("me", "old")},
		"the same, used up":                               {exact: true, minted: 60, usedUp: true, identity: held("me", "old"), want: join.UsedUpToken},
		"another's, the token for the role":               {minted: 60, identity: held("other", "x"), want: join.HeldByAnother, duplicate: true},
		"another's, the same key: a copied disk":          {minted: 60, identity: held("other", "key"), want: join.HeldByAnother, duplicate: true},
		"another's, a token from before":                  {exact: true, minted: 10, identity: held("other", "x"), want: join.HeldByAnother, duplicate: true},
		"another's, a new token for it":                   {exact: true, minted: 60, identity: held("other", "x"), holder: over},
		"another's in its first boot, a new token for it": {exact: true, minted: 60, identity: held("other", "x"), holder: inBoot, want: join.LockedByAnother, duplicate: true},
		"the same, unlocked":                              {exact: true, minted: 60, identity: held("other", "x"), holder: unlocked},
		"the same, unlocked, with the token for the role": {minted: 60, identity: held("other", "x"), holder: unlocked, want: join.HeldByAnother, duplicate: true},
		"removed, the old token":                          {minted: 10, identity: removed("me", false), want: join.WasRemoved},
		"removed, an old token for it":                    {exact: true, minted: 10, identity: removed("me", false), want: join.WasRemoved},
		"removed, a new token":                            {minted: 60, identity: removed("me", false)},
		"left by itself":                                  {minted: 10, identity: removed("me", true)},
		"another's that left, by name":                    {minted: 10, identity: removed("other", true), want: join.WasRemoved},
		"another's that was removed, by claim":            {minted: 10, claimed: true, identity: removed("other", false)},
		"its own that was removed, by claim":              {minted: 10, claimed: true, identity: removed("me", false), want: join.MachineRemoved},
		"on the list, its own":                            {minted: 10, host: listed("me")},
		"on the list by hand":                             {minted: 10, host: listed("")},
		"on the list with another machine":                {minted: 60, host: listed("other"), want: join.HeldByAnother},
		"the same, with an old token for it":              {exact: true, minted: 10, host: listed("other"), want: join.HeldByAnother},
		"the same, with a new token for it":               {exact: true, minted: 60, host: listed("other")},
		"put on the list since it was claimed":            {minted: 10, claimed: true, host: listed("me"), want: join.HeldByAnother},
		"removed under another name, the old token":       {minted: 10, was: gone, want: join.MachineRemoved},
		"removed under another name, by claim":            {minted: 10, claimed: true, was: gone, want: join.MachineRemoved},
		"removed under another name, a new token":         {minted: 60, was: gone},
	} {
		t.Run(name, func(t *testing.T) {
			token := &access.Token{Environment: "dev", Role: "controller", Uses: 1, Expires: noon.Add(time.Hour)}
			secret := "secret"
			token.Hash = hashOf(t, secret)
			if c.exact {
				token.Role, token.Node = "", "controller1"
			}
			if c.usedUp {
				token.Used = 1
			}
			f := access.JoinFacts{
				Token: token, Minted: c.minted, Identity: c.identity, Changed: 50, Host: c.host, Listed: 50, Holder: c.holder, Was: c.was,
				Spec: &environments.Environment{Name: "dev", Roles: []environments.Role{role("controller", 1)}},
			}
			a := joining{Request: join.Request{Machine: join.Machine{ID: "me"}}, secret: secret, key: "key", env: "dev", node: "controller1", claimed: c.claimed}
			v := judge(a, f, noon)
			got := join.Reason("")
			if v.refused != nil {
				got = v.refused.Reason
			}
			if got != c.want || v.again != c.again || v.duplicate != c.duplicate {
				t.Errorf("got %q, again %t, duplicate %t; want %q, %t, %t", got, v.again, v.duplicate, c.want, c.again, c.duplicate)
			}
			if v.refused != nil && v.refused.Hint() == "" {
				t.Error("it does not say what to do")
			}
		})
	}
}

// A machine ID holds a name: a refused machine must not learn from the refusal which ID to claim.
func TestRefusalHidesMachineID(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	token := &access.Token{Environment: "dev", Hash: sha("secret"), Expires: noon.Add(time.Hour)}
	f := access.JoinFacts{Token: token, Minted: 10, Spec: &environments.Environment{Name: "dev", Roles: []environments.Role{role("controller", 1)}}}
	a := joining{Request: join.Request{Machine: join.Machine{ID: "me"}}, secret: "secret", env: "dev", node: "controller1"}
	listed, held, inBoot := f, f, f
	listed.Host = &model.Host{Node: "controller1", MachineID: id}
	held.Identity = &access.Identity{Node: "controller1", User: "u", Machine: id}
	inBoot.Identity, inBoot.Holder = held.Identity, &access.FirstBoot{Machine: id, Node: "controller1", Step: "puppet"}
	for name, f := range map[string]access.JoinFacts{"on the list": listed, "joined": held, "in its first boot": inBoot} {
		v := judge(a, f, noon)
		if v.refused == nil || strings.Contains(v.refused.Error(), id[:9]) || !strings.Contains(v.refused.Error(), id[:8]) {
			t.Errorf("%s: %v", name, v.refused)
		}
	}
}

// A token is read twice, and an operator may change it in between: a decision on the first read must not apply to the
// second.
func TestChangedTokenIsRefused(t *testing.T) {
	f := access.JoinFacts{Minted: 60, Spec: &environments.Environment{Name: "dev", Roles: []environments.Role{role("controller", 2)}}}
	a := joining{secret: "secret", env: "dev", node: "controller1"}
	for name, c := range map[string]struct {
		token access.Token
		want  join.Reason
	}{
		"now of another environment": {access.Token{Environment: "prod"}, join.WrongEnvironment},
		"now for another node":       {access.Token{Environment: "dev", Node: "controller2"}, join.WrongNode},
	} {
		c.token.Hash, c.token.Expires = sha("secret"), noon.Add(time.Hour)
		f.Token = &c.token
		if v := judge(a, f, noon); v.refused == nil || v.refused.Reason != c.want {
			t.Errorf("%s: %v", name, v.refused)
		}
	}
}

// hashOf returns the stored hash of a secret.
func hashOf(t *testing.T, secret string) string {
	t.Helper()
	sum := sha(secret)
	if !(access.Token{Hash: sum}).Matches(secret) {
		t.Fatal("the hash is another")
	}
	return sum
}

package tokens

import (
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/model"
)

// A token with a wrong scope admits the wrong machine, or none.
func TestCheckRefusesContradictions(t *testing.T) {
	t.Parallel()
	dev := model.Ref{Environment: "dev"}
	for name, c := range map[string]struct {
		r  Request
		ok bool
	}{
		"a node":                 {Request{Ref: dev, Node: "web1", Uses: 1, Lifetime: time.Hour}, true},
		"any node, any uses":     {Request{Ref: dev, Lifetime: MaxLifetime}, true},
		"an operator":            {Request{Operator: "ann", As: access.RoleAdmin, Uses: 1, Lifetime: time.Hour}, true},
		"too short":              {Request{Ref: dev, Lifetime: time.Millisecond}, false},
		"too long":               {Request{Ref: dev, Lifetime: MaxLifetime + 1}, false},
		"negative uses":          {Request{Ref: dev, Uses: -1, Lifetime: time.Hour}, false},
		"a node and a role":      {Request{Ref: dev, Node: "web1", Role: "web", Lifetime: time.Hour}, false},
		"an operator and a node": {Request{Operator: "ann", As: access.RoleAdmin, Node: "web1", Lifetime: time.Hour}, false},
		"an operator and a ref":  {Request{Ref: dev, Operator: "ann", As: access.RoleAdmin, Lifetime: time.Hour}, false},
		"no role of an operator": {Request{Operator: "ann", Lifetime: time.Hour}, false},
		"unknown role":           {Request{Operator: "ann", As: "king", Lifetime: time.Hour}, false},
		"a role without a name":  {Request{Ref: dev, As: access.RoleAdmin, Lifetime: time.Hour}, false},
		"a name with a slash":    {Request{Operator: "a/b", As: access.RoleAdmin, Lifetime: time.Hour}, false},
	} {
		if err := c.r.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStateOfToken(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	good := access.Token{Environment: "dev", Uses: 1, Expires: now.Add(time.Hour)}
	revoked, expired, used := good, good, good
	revoked.Revoked, expired.Expires, used.Used = &access.Revoked{At: now}, now, 1
	for want, token := range map[State]access.Token{Valid: good, Revoked: revoked, Expired: expired, UsedUp: used} {
		if got := StateOf(token, now); got != want {
			t.Errorf("the state is %s, want %s", got, want)
		}
	}
}

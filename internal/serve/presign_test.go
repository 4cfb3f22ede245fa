package serve

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/access"
)

// A certificate that is made for a machine which is alive, or which nobody awaits, makes another one invalid or stays valid for ever.
func TestPresignOnlyForAwaitedMachines(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	spec := func(how string) *environments.Environment {
		return &environments.Environment{
			Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 2}}, Puppet: settings.PuppetSettings{CA: settings.PuppetCA{URL: "https://ca", How: how}},
		}
	}
	made := spec(settings.CertificatesMade)
	token := &access.Token{Node: "web1", Created: now.Add(-time.Hour)}
	key, signed := &access.Presigned{Key: "k"}, &access.Presigned{Key: "k", Certificate: "c"}
	live := func(age time.Duration) access.Holder {
		return access.Holder{Identity: &access.Identity{User: "u", Joined: now.Add(-age)}}
	}
	removed := func(age time.Duration) access.Holder {
		return access.Holder{Identity: &access.Identity{Removed: &access.Removal{At: now.Add(-age)}}}
	}
	for name, c := range map[string]struct {
		place
		node string
		want task
	}{
		"awaited":                                {place{made, token, nil, access.Holder{}}, "web1", presign},
		"interrupted":                            {place{made, token, key, access.Holder{}}, "web1", presign},
		"signed":                                 {place{made, token, signed, access.Holder{}}, "web1", nothing},
		"of a removed node":                      {place{made, token, nil, removed(2 * time.Hour)}, "web1", presign},
		"removed in the second of the order":     {place{made, token, nil, removed(time.Hour - 900*time.Millisecond)}, "web1", presign},
		"with a token from before the removal":   {place{made, token, nil, removed(time.Minute)}, "web1", nothing},
		"alive":                                  {place{made, token, nil, live(time.Hour)}, "web1", nothing},
		"that just joined":                       {place{made, nil, signed, live(time.Hour)}, "web1", nothing},
		"that did not fetch it":                  {place{made, nil, signed, live(25 * time.Hour)}, "web1", forget},
		"listed":                                 {place{made, token, nil, access.Holder{Listed: true}}, "web1", nothing},
		"whose former certificate is not clean":  {place{made, token, nil, access.Holder{Unclean: true}}, "web1", nothing},
		"with a request of its own":              {place{spec("csr"), token, nil, access.Holder{}}, "web1", nothing},
		"that makes its own request from now on": {place{spec("csr"), token, signed, access.Holder{}}, "web1", giveUp},
		"without a token":                        {place{made, nil, key, access.Holder{}}, "web1", giveUp},
		"of an environment that is gone":         {place{nil, nil, signed, access.Holder{}}, "web1", giveUp},
		"that is not called for":                 {place{made, token, nil, access.Holder{}}, "web9", nothing},
	} {
		if got := c.place.next(c.node, now); got != c.want {
			t.Errorf("a machine %s: %q, want %q", name, got, c.want)
		}
	}
}

package environments

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A machine that is made before those it depends on fails its first runs needlessly.
func TestLayersFollowTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyEnvironment.Draw(t, "environment")
		at := map[string]int{}
		var flat []string
		for i, layer := range e.Layers() {
			if len(layer) == 0 {
				t.Fatalf("layer %d is empty: %v", i, e.Layers())
			}
			for _, name := range layer {
				at[name] = i
			}
			flat = append(flat, layer...)
		}
		if got, want := slices.Sorted(slices.Values(flat)), slices.Sorted(slices.Values(e.RoleNames())); !slices.Equal(got, want) {
			t.Fatalf("roles %v became %v", want, got)
		}
		for _, r := range e.Roles {
			least := 0
			for _, name := range r.After {
				least = max(least, at[name]+1)
			}
			if at[r.Name] != least {
				t.Fatalf("%s is in layer %d, should be in %d: %v", r.Name, at[r.Name], least, e.Layers())
			}
		}
	})
	for _, e := range []*Environment{
		{Roles: []Role{{Name: "a", After: []string{"b"}}, {Name: "b", After: []string{"a"}}, {Name: "c"}}},
		{Roles: []Role{{Name: "c"}, {Name: "a", After: []string{"gone"}}, {Name: "b", After: []string{"a"}}}},
	} {
		if got := e.Layers(); !reflect.DeepEqual(got, [][]string{{"c"}, {"a", "b"}}) {
			t.Errorf("what check would refuse ends as %v", got)
		}
	}
}

// A batch of zero would never end. One that is too large takes a role down.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		text                  string
		cardinality           int
		wantBatch, wantFailed int
	}{
		{"", 40, 1, 0}, {"2", 40, 2, 2}, {"2", 0, 2, 2}, {"10%", 40, 4, 4}, {"10%", 5, 1, 1}, {"100%", 7, 7, 7}, {"1%", 0, 1, 1}, {"33%", 10, 3, 3},
		{"-1", 3, 1, 0}, {"x", 3, 1, 0}, {"%", 3, 1, 0}, // check refuses these; they must not panic or loop either
		{"0", 3, 1, 0},
	} {
		r := replace{Batch: c.text, Failures: c.text}
		if batch, failed := r.BatchOf(c.cardinality), r.FailuresOf(c.cardinality); batch != c.wantBatch || failed != c.wantFailed {
			t.Errorf("%q of %d: batch %d, failures %d, want %d and %d", c.text, c.cardinality, batch, failed, c.wantBatch, c.wantFailed)
		}
	}
}

// A first boot must use all settings of its role, and of the environment.
func TestUserdataOfARole(t *testing.T) {
	value := reflect.ValueOf(Userdata{})
	for i := range value.NumField() {
		name := value.Type().Field(i).Name
		set := func(u *Userdata, text string) any {
			switch f := reflect.ValueOf(u).Elem().Field(i); f.Interface().(type) {
			case string:
				f.SetString(text)
			case []string:
				f.Set(reflect.ValueOf([]string{text}))
			case map[string]string:
				f.Set(reflect.ValueOf(map[string]string{text: text}))
			}
			return reflect.ValueOf(*u).Field(i).Interface()
		}
		var all, own Userdata
		general, special := set(&all, "all"), set(&own, "own")
		of := func(e Environment, r Role) any { return reflect.ValueOf(e.UserdataOf(r)).Field(i).Interface() }
		want := special
		switch name {
		case "Pre", "Post":
			want = []string{"all", "own"}
		case "Steps":
			want = map[string]string{"all": "all", "own": "own"}
		}
		if got := of(Environment{Userdata: all}, Role{}); !reflect.DeepEqual(got, general) {
			t.Errorf("%s of the environment: %v", name, got)
		}
		if got := of(Environment{}, Role{Userdata: own}); !reflect.DeepEqual(got, special) {
			t.Errorf("%s of the role: %v", name, got)
		}
		if got := of(Environment{Userdata: all}, Role{Userdata: own}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s of both: %v, want %v", name, got, want)
		}
	}
	e := Environment{Userdata: Userdata{Steps: map[string]string{"puppet": "off"}}}
	if got := e.UserdataOf(Role{Userdata: Userdata{Steps: map[string]string{"puppet": "/x"}}}).Steps["puppet"]; got != "/x" || e.Userdata.Steps["puppet"] != "off" {
		t.Errorf("the same step in both: %s", got)
	}
}

func TestRoleOf(t *testing.T) {
	e, err := Parse("dev.yaml", []byte("stack: t42\nroles: {web: {cardinality: 2}, db: {cardinality: 1, members: [old.example.com, compute9]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"web2_t42": "web", "db1_t42": "db", "old.example.com": "db", "compute9": "db", "web3_t42": "", "web2": "", "new.example.com": "", "": "",
	} {
		if r, ok := e.RoleOf(name); r.Name != want || ok != (want != "") {
			t.Errorf("%s is %q, %v; want %q", name, r.Name, ok, want)
		}
	}
}

// An operator would approve a change that the plan does not show.
func TestDiffShowsMachineSettings(t *testing.T) {
	before, err := Parse("dev.yaml", []byte(`provider: {driver: openstack, cloud: west}
flavors: {small: m1.small}
roles:
  web: {cardinality: 1, flavor: small, image: debian, labels: {team: core}, after: [db], userdata: {pre: ["#!/bin/sh\na"], post: ["#!/bin/sh\nb"]}, members: [old.example]}
  db: {cardinality: 1, replace: {batch: 2}}
`))
	if err != nil {
		t.Fatal(err)
	}
	after, err := Parse("dev.yaml", []byte(`provider: {driver: local}
flavors: {small: m2.small, big: m2.big}
userdata: {proxy: "http://p:1"}
roles:
  web: {cardinality: 1, flavor: small, image: debian-13, networks: [front, back], labels: {team: edge}, userdata: {pre: ["#!/bin/sh\nc"]}}
  db: {cardinality: 1, protected: true, reacts_to: [web], replace: {batch: 10%, timeout: 1h}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `provider: openstack → local
provider.cloud: west → none
flavors.small: m1.small → m2.small
flavors.big: none → m2.big
userdata.proxy: none → http://p:1
web: image debian → debian-13
web: labels.team core → edge
web: after db → none
web: userdata.pre 11 bytes (sha256 d9729400…) → 11 bytes (sha256 bb4dcdc2…)
web: userdata.post 11 bytes (sha256 59f8b6d5…) → none
web: members old.example → none
web: networks none → front, back
db: replace.batch 2 → 10%
db: reacts_to none → web
db: protected none → true
db: replace.timeout none → 1h0m0s`
	if got := strings.Join(Diff(before, after).Lines(), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	back := strings.Join(Diff(after, before).Lines(), "\n")
	for _, line := range []string{"web: after none → db", "db: protected true → none", "db: reacts_to web → none", "web: userdata.post none → 11 bytes (sha256 59f8b6d5…)"} {
		if !strings.Contains(back, line+"\n") && !strings.HasSuffix(back, line) {
			t.Errorf("%q is missing in\n%s", line, back)
		}
	}
	made := strings.Join(Diff(nil, after).Lines(), "\n")
	if !strings.Contains(made, "db: new, cardinality 1, reacts_to web, protected true, replace.batch 10%, replace.timeout 1h0m0s (+db1)") {
		t.Errorf("got\n%s", made)
	}
}

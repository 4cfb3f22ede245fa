package environments

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// Every later Pulley must read the stored form: its bytes are pinned.
func TestEncode(t *testing.T) {
	for _, c := range []struct {
		sentence string
		e        Environment
		want     string
	}{
		{"the plan's environment", Environment{Name: "dev", Roles: []Role{{Name: "controller", Cardinality: 2, Flavor: "bare-metal"}, {Name: "compute", Cardinality: 0, Flavor: ""}}},
			`{"v":2,"name":"dev","roles":[{"name":"controller","cardinality":2,"flavor":"bare-metal"},{"name":"compute","cardinality":0}]}`},
		{"settings of flags", Environment{Name: "dev", Userdata: Userdata{Proxy: "http://p:1"}, Given: Userdata{Proxy: "http://p:1"}},
			`{"v":3,"name":"dev","userdata":{"proxy":"http://p:1"},"roles":[],"given":{"proxy":"http://p:1"}}`},
		{"a stack and no roles", Environment{Name: "dev", Stack: "t42"}, `{"v":2,"name":"dev","stack":"t42","roles":[]}`},
		{"who makes machines, and how", Environment{
			Name: "dev", Provider: Provider{Driver: DriverExec, Command: []string{"/bin/cloud"}, Timeout: model.Duration(time.Minute)},
			Flavors: map[string]string{"s": "m1.small"}, Userdata: Userdata{Proxy: "http://p:1"},
			Roles: []Role{{Name: "web", Cardinality: 1, Replace: replace{Batch: "2", Timeout: model.Duration(time.Hour)}, After: []string{"db"}}, {Name: "db", Protected: true}},
		}, `{"v":5,"name":"dev","provider":{"driver":"exec","command":["/bin/cloud"],"timeout":"1m0s"},"flavors":{"s":"m1.small"},"userdata":{"proxy":"http://p:1"},` +
			`"roles":[{"name":"web","cardinality":1,"after":["db"],"replace":{"batch":"2","timeout":"1h0m0s"}},{"name":"db","cardinality":0,"protected":true}]}`},
		{"a policy for rollouts", Environment{Name: "dev", Rollout: RolloutPolicy{Canaries: "1", Settle: model.Duration(time.Minute), MaxUnavailable: map[string]int{"rack": 1}, TrustedFacts: []string{"rack"}}},
			`{"v":5,"name":"dev","rollout":{"canaries":"1","settle":"1m0s","max_unavailable":{"rack":1},"trusted_facts":["rack"]},"roles":[]}`},
		{"a Puppet server", Environment{Name: "dev", Puppet: settings.PuppetSettings{Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1"}}, Provision: settings.PuppetProvision{Sleeptime: model.Duration(time.Second)}}},
			`{"v":6,"name":"dev","puppet":{"servers":{"eu1":{"address":"10.0.0.1"}},"provision":{"sleeptime":"1s"}},"roles":[]}`},
		{"report processors alone", Environment{Name: "dev", Puppet: settings.PuppetSettings{Reports: []string{"puppetdb"}}}, `{"v":4,"name":"dev","puppet":{"reports":["puppetdb"]},"roles":[]}`},
		{"a flavor with signs", Environment{Name: "dev", Roles: []Role{{Name: "web", Cardinality: 1, Flavor: "<big>"}}}, `{"v":2,"name":"dev","roles":[{"name":"web","cardinality":1,"flavor":"<big>"}]}`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := Encode(&c.e)
			if err != nil || string(got) != c.want {
				t.Errorf("got %s (%v), want %s", got, err, c.want)
			}
		})
	}
	_, err := Encode(&Environment{Name: "Dev", Roles: []Role{{Name: "web", Cardinality: -1, Flavor: ""}}})
	says(t, err, `cannot store environment "Dev": environment name "Dev": 'D' can't be part of it, only a-z, 0-9 and '_' can
  did you mean dev?
cardinality of "web": it is -1, below 0
  0 keeps the role without nodes`, "")
}

// An environment that an earlier Pulley stored must stay readable: its `rollout` of a role is `replace` now.
func TestDecodeRenamesReplace(t *testing.T) {
	e, err := Decode([]byte(`{"v":2,"name":"dev","roles":[{"name":"web","cardinality":1,"rollout":{"batch":"2"}}]}`))
	if err != nil || e.Roles[0].Replace.Batch != "2" {
		t.Errorf("%+v, %v", e, err)
	}
	_, err = Decode([]byte(`{"v":5,"name":"dev","roles":[{"name":"web","cardinality":1,"rollout":{"batch":"2"}}]}`))
	says(t, err, `cannot read stored environment: it is damaged: json: unknown field "rollout"`, "")
}

func TestEncodeRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyEnvironment.Draw(t, "environment")
		data, err := Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(data)
		if err != nil || !same(got, want) {
			t.Fatalf("got %+v (%v), want %+v", got, err, want)
		}
	})
}

// A damaged value must be distinguished from a value of a newer Pulley: an upgrade helps with the second only.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, data, problem, hint string }{
		{"a newer format, whatever it looks like", `{"v":7,"name":["x"]}`, "it was written by a newer Pulley (format 7, this one reads 6)", "use a newer Pulley here, too"},
		{"nothing", ``, "it is damaged: unexpected end of JSON input", ""},
		{"a part", `{"v":1,"name":"dev","ro`, "it is damaged: unexpected end of JSON input", ""},
		{"something else", `{"colour":"red"}`, "it is damaged: it has no format version", ""},
		{"null", `null`, "it is damaged: it has no format version", ""},
		{"a field of another type", `{"v":1,"name":"dev","roles":[{"name":"web","cardinality":"1"}]}`,
			"it is damaged: json: cannot unmarshal string into Go struct field Role.Environment.roles.cardinality of type int", ""},
		{"a field that this format does not have", `{"v":1,"name":"dev","roles":[],"colour":"red"}`, `it is damaged: json: unknown field "colour"`, ""},
		{"a time of another kind", `{"v":1,"name":"dev","roles":[{"name":"web","cardinality":1,"rollout":{"timeout":"1 hour"}}]}`,
			`it is damaged: time: unknown unit " hour" in duration "1 hour"`, ""},
		{"more than one value", `{"v":1,"name":"dev","roles":[]}{}`, "it is damaged: invalid character '{' after top-level value", ""},
		{"no name", `{"v":1,"roles":[]}`, `it is damaged: environment name "": it is empty`, ""},
		{"a role twice", `{"v":1,"name":"dev","roles":[{"name":"web","cardinality":1},{"name":"web","cardinality":1}]}`, `it is damaged: role "web" appears twice`, ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Decode([]byte(c.data))
			says(t, err, "cannot read stored environment: "+c.problem, c.hint)
		})
	}
}

// An environment within the limits must fit into one value of etcd.
func TestLargestEnvironmentStaysSmall(t *testing.T) {
	e := &Environment{Name: strings.Repeat("e", model.MaxEnvironment)}
	for i := range maxRoles {
		own := []byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676)}
		e.Roles = append(e.Roles, Role{
			Name: string(own) + strings.Repeat("r", model.MaxRole-len(own)), Cardinality: 1, Flavor: strings.Repeat(`"`, model.MaxFlavor),
		})
	}
	data, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 512<<10 {
		t.Errorf("it takes %d bytes", len(data))
	}
	if got, err := Decode(data); err != nil || !same(got, e) {
		t.Errorf("it does not read back: %v", err)
	}
}

// The same environment must have the same bytes, or storing it again would look like a change.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"v":1,"name":"dev","stack":"t42","roles":[{"name":"web","cardinality":2,"flavor":"small"}]}`, `{"v":1,"name":"dev"}`,
		`{"v":1,"name":"dev","provider":{"driver":"exec","command":["/c"],"timeout":"1m0s"},"images":{"a":"b"},"roles":[{"name":"web","cardinality":1,"labels":{"a":"b"},"members":["x.example"],"rollout":{"failures":"5%"}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Decode(data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "cannot read stored environment: ") {
				t.Errorf("bare error %v", err)
			}
			return
		}
		once, err := Encode(e)
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := Decode(once)
		if err != nil || !same(again, e) {
			t.Fatalf("%s does not read back: %v", once, err)
		}
		if twice, _ := Encode(again); !bytes.Equal(once, twice) {
			t.Fatalf("%s, then %s", once, twice)
		}
	})
}

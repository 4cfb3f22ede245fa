package environments

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

const cloudFile = `provider: {driver: openstack, cloud: west, config_drive: true}
flavors: {small: m1.small, large: m1.large}
images: {debian: debian-12}
userdata:
  proxy: http://proxy:3128
  steps: {puppet: "off"}
  pre: ["#!/bin/sh\ncloud\n"]
`

const layeredFile = `provider: openstack
flavors: {large: m2.huge}
userdata:
  steps: {hostname: "off"}
  pre: ["#!/bin/sh\nown\n"]
roles:
  web: {cardinality: 2, flavor: small, image: debian, networks: [front]}
  db: {cardinality: 1, flavor: large, after: [web]}
`

func load(file, cloud string, stack string, sets ...string) (*Environment, error) {
	o := LoadOptions{File: Source{"environments/dev.yaml", []byte(file)}, Sets: sets, Stack: stack}
	if cloud != "" {
		o.Cloud = &Source{"clouds/west.yaml", []byte(cloud)}
	}
	return Load(o)
}

// The names of the cloud file must reach the provider, unless the environment file overrides them.
func TestLoadLaysTheCloudUnderTheFile(t *testing.T) {
	e, err := load(layeredFile, cloudFile, "")
	if err != nil {
		t.Fatal(err)
	}
	web, db := e.Roles[0], e.Roles[1]
	for what, pair := range map[string][2]string{
		"web's flavor, of the cloud": {e.FlavorOf(web), "m1.small"}, "db's flavor, of the file": {e.FlavorOf(db), "m2.huge"},
		"web's image": {e.ImageOf(web), "debian-12"}, "db's image": {e.ImageOf(db), ""}, "a network without a table": {strings.Join(e.NetworksOf(web), " "), "front"},
		"the provider's cloud": {e.Provider.Cloud, "west"}, "the proxy": {e.Userdata.Proxy, "http://proxy:3128"},
		"both steps": {e.Userdata.Steps["puppet"] + e.Userdata.Steps["hostname"], "offoff"}, "the file's scripts alone": {strings.Join(e.Userdata.Pre, ""), "#!/bin/sh\nown\n"},
		"the driver": {e.Driver(), DriverOpenStack},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
	if !e.Provider.ConfigDrive {
		t.Error("config_drive did not come from the cloud")
	}
	other, err := load("provider: {driver: openstack, config_drive: false}\nroles: {}\n", cloudFile, "")
	if err != nil || other.Provider.ConfigDrive {
		t.Errorf("config_drive: false of the file is lost: %v", err)
	}
	local, err := load("provider: local\nroles: {}\n", cloudFile, "")
	if err != nil || local.Provider.Cloud != "" || local.Driver() != DriverLocal {
		t.Errorf("another driver took the cloud's settings: %+v, %v", local, err)
	}
	alone, err := load("roles: {web: {cardinality: 1, flavor: small}}\n", "", "")
	if err != nil || alone.FlavorOf(alone.Roles[0]) != "small" || alone.Driver() != DriverNone {
		t.Errorf("without a table the role's word is the provider's: %v", err)
	}
}

// --set changes single values: other values stay, and the new ones pass the checks of the file.
func TestLoadSets(t *testing.T) {
	e, err := load(layeredFile, cloudFile, "t42", "web.cardinality=5", "roles.db.flavor=small", "provider.cloud=east", "flavors.m1.x=big",
		"web.replace.batch=10%", "web.replace.timeout=5m", "db.protected=true", "web.labels.team=core", "db.userdata.schedule=* * * * *", "web.replace.failures=2")
	if err != nil {
		t.Fatal(err)
	}
	web, db := e.Roles[0], e.Roles[1]
	if web.Cardinality != 5 || db.Flavor != "small" || e.Provider.Cloud != "east" || e.Flavors["m1.x"] != "big" || e.Ref().String() != "dev@t42" ||
		web.Replace.BatchOf(50) != 5 || e.TimeoutOf(web).Minutes() != 5 || !db.Protected || web.Labels["team"] != "core" || db.Userdata.Schedule != "* * * * *" ||
		web.Replace.FailuresOf(9) != 2 || e.TimeoutOf(db) != DefaultTimeout {
		t.Errorf("got %+v", e)
	}
	if folded, err := load("provider: openstack\nroles: {}\n", "", "", "provider.cloud=x"); err != nil || folded.Provider.Cloud != "x" {
		t.Errorf("a setting of a provider that is one word: %+v, %v", folded, err)
	}
	if both, err := load("stack: a\nroles: {stack: {cardinality: 1}}\n", "", "", "stack.cardinality=2", "stack=b"); err != nil || both.Stack != "b" || both.Roles[0].Cardinality != 2 {
		t.Errorf("a role that is called like a key: %+v, %v", both, err)
	}
}

func TestLoadRefusesSets(t *testing.T) {
	for _, c := range []struct{ sentence, set, want string }{
		{"an extension, which nodes read from the release", "web.trusted.pp_role=db", "--set web.trusted.pp_role=db: nodes read it from the file in the release | write it into the file and publish it"},
		{"no value", "web.cardinality", "--set web.cardinality: it is not PATH=VALUE | write it like compute.cardinality=5"},
		{"an empty part", "web..x=1", "--set web..x=1: it is not PATH=VALUE | write it like compute.cardinality=5"},
		{"a role with a slip", "wep.cardinality=5", `--set wep.cardinality=5: there is no role and no key "wep" | did you mean web?`},
		{"a role that there is not", "lb.cardinality=5", `--set lb.cardinality=5: there is no role and no key "lb" | did you mean db?`},
		{"something else", "elsewhere=5", `--set elsewhere=5: there is no role and no key "elsewhere" | it begins with a role or a key of the file: web, db, stack, provider, flavors, images, networks, signatures, statement, silence, rollout, trusted, layers, nodes, enc, puppet, hosts, applications, userdata and roles`},
		{"a key with a slip", "web.cardinalty=5", `--set web.cardinalty=5: role "web" has no key "cardinalty" | did you mean cardinality?`},
		{"a complete role", "web=5", `--set web=5: "web" is a role, and no single value | write it like web.cardinality=5`},
		{"a list", "db.after=web", `--set db.after=web: "after" is a list, and only single values can be set | change the file for that`},
		{"a mapping", "web.replace=2", `--set web.replace=2: "replace" has keys of its own, and is not a single value | change the file for that`},
		{"below a value", "web.cardinality.x=2", `--set web.cardinality.x=2: "cardinality.x" is below a single value | change the file for that`},
		{"no number", "web.cardinality=five", `--set web.cardinality=five: cardinality "five" is not written as a decimal integer | use the digits 0 to 9`},
		{"a number too low", "web.cardinality=-1", `--set web.cardinality=-1: cardinality of "web": it is -1, below 0 | 0 keeps the role without nodes`},
		{"no truth", "web.protected=maybe", `--set web.protected=maybe: protected is the boolean "maybe", not true or false`},
		{"nothing", "web.flavor=", "--set web.flavor=: flavor is empty | leave the line out if there is none"},
		{"a symbol without mapping", "web.flavor=huge", `--set web.flavor=huge: flavor "huge" of role "web" has no entry in flavors | there is large and small`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := load(layeredFile, cloudFile, "", c.set)
			got := problemLines(t, err)
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	_, err := load(layeredFile, cloudFile, "T_42")
	if got, want := problemLines(t, err), "--stack T_42: stack \"T_42\": 'T' can't be part of it, only a-z, 0-9 and '-' can | did you mean t-42?"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, err = load(layeredFile, cloudFile, "", "provider.driver=local")
	if got := problemLines(t, err); !strings.Contains(got, `clouds/west.yaml:1:31: provider local has no key "cloud": that is a key of openstack`) {
		t.Errorf("another driver with the settings of this one: %s", got)
	}
}

// A mistake in the cloud file must be reported there, not in the environment file.
func TestLoadNamesInvalidFile(t *testing.T) {
	_, err := load("roles: {web: {cardinality: 1, flavor: x, imag: y}}\n", "flavors: {small: 4}\nroles: {}\n", "")
	if got, want := problemLines(t, err), `environments/dev.yaml:1:42: role "web" has no key "imag" | did you mean image?
clouds/west.yaml:1:18: flavors.small is the integer "4", not text | put quotes around it: "4"
clouds/west.yaml:2:1: a cloud has no key "roles" | its keys are provider, flavors, images, networks and userdata`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, err = load("provider: exec\nroles: {}\n", "provider: {driver: exec, timeout: 1m}\n", "")
	if got := problemLines(t, err); !strings.Contains(got, "provider exec has no command") {
		t.Errorf("got %s", got)
	}
	_, err = load("roles: {}\n", "{}\n", "")
	if err != nil {
		t.Errorf("a cloud that says nothing: %v", err)
	}
	_, err = load("roles: {}\n", "# nothing\n", "")
	if got := problemLines(t, err); got != "clouds/west.yaml: the file is empty | it must contain words like `flavors:`" {
		t.Errorf("got %s", got)
	}
}

// The sample cloud must fit the sample environments, or the first command of a new user fails.
func TestSampleCloudFitsTheSamples(t *testing.T) {
	cloud, err := fs.ReadFile(Samples(), "clouds/openstack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev.yaml", "production.yaml"} {
		file, err := fs.ReadFile(Samples(), "environments/"+name)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Load(LoadOptions{File: Source{name, file}, Cloud: &Source{"openstack.yaml", cloud}})
		if err != nil || e.Driver() != DriverOpenStack {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A stored environment is one value of etcd: several large parts can exceed the limit together.
func TestLoadBoundsTheWhole(t *testing.T) {
	script := "#!/bin/sh\n" + strings.Repeat("# x\n", 2000)
	var b strings.Builder
	for i := range 70 {
		b.WriteString("  " + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ": {cardinality: 1, userdata: {pre: [" + asJSON(script) + "]}}\n")
	}
	_, err := load("roles:\n"+b.String(), "", "")
	if got := problemLines(t, err); !strings.HasPrefix(got, "environments/dev.yaml: the environment takes ") || !strings.Contains(got, "at most 524288 are possible") {
		t.Errorf("got %s", got)
	}
	e := &Environment{Name: "dev", Roles: []Role{{Name: "web", Userdata: Userdata{Pre: slices.Repeat([]string{script}, 70)}}}}
	if _, err := Encode(e); err == nil || !strings.Contains(err.Error(), "cannot store environment \"dev\": the environment takes ") {
		t.Errorf("got %v", err)
	}
}

// For any input, ParseCloud returns a cloud that fits under any environment, or problems.
func FuzzCloud(f *testing.F) {
	// testdata has more
	for _, s := range []string{cloudFile, "", "provider: local\n", "userdata: {steps: {puppet: off}}\n", "flavors: &a {x: *a}\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := ParseCloud("west.yaml", data)
		e, both := Load(LoadOptions{File: Source{"dev.yaml", []byte("roles: {web: {cardinality: 1}}\n")}, Cloud: &Source{"west.yaml", data}})
		var problems Errors
		if err != nil && (!errors.As(err, &problems) || both == nil) {
			t.Fatalf("alone %v, under a file %v", err, both)
		}
		if both == nil {
			if _, err := Encode(e); err != nil {
				t.Fatalf("what was read can't be stored: %v", err)
			}
		} else if !errors.As(both, &problems) {
			t.Fatalf("error %v", both)
		}
	})
}

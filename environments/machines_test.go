package environments

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/model"
)

// Errors in the settings of machines must be reported with their positions before the first order.
func TestParseRefusesMachines(t *testing.T) {
	web := func(lines string) string { return "roles:\n  web:\n    cardinality: 3\n" + lines }
	top := func(lines string) string { return lines + "roles: {}\n" }
	for _, c := range []struct{ sentence, yaml, want string }{
		{"an unknown driver", top("provider: openstak\n"), `dev.yaml:1:11: provider.driver "openstak": there is no such driver | did you mean openstack?`},
		{"a driver of another kind", top("provider: vmware\n"), `dev.yaml:1:11: provider.driver "vmware": there is no such driver | the drivers are exec, local, none, nspawn and openstack`},
		{"no driver", top("provider:\n  cloud: west\n"), `dev.yaml:2:3: provider has no driver | add ` + "`driver: openstack`" + `, or another driver: exec, local, none, nspawn and openstack`},
		{"a provider as a list", top("provider: [local]\n"), `dev.yaml:1:11: provider is a list, it has to be keys with values`},
		{"a provider as a number", top("provider: 7\n"), `dev.yaml:1:11: provider.driver is the integer "7", not text | put quotes around it: "7"`},
		{"a key of another driver", top("provider:\n  driver: local\n  subnet: 10.0.0.0/16\n"),
			`dev.yaml:3:3: provider local has no key "subnet": that is a key of nspawn | the keys of local are driver, owner, folder, agent and interval`},
		{"a key that no driver has", top("provider: {driver: local, colour: red}\n"), `dev.yaml:1:27: provider has no key "colour" | did you mean cloud?`},
		{"an owner of nothing", top("provider: {driver: none, owner: x}\n"), `dev.yaml:1:26: provider none has no key "owner": that is a key of exec, local, nspawn and openstack | the keys of none are driver`},
		{"exec without a command", top("provider: exec\n"), "dev.yaml:1:11: provider exec has no command | add the program that creates machines: `command: [/usr/local/bin/my-cloud]`"},
		{"a command as text", top("provider: {driver: exec, command: /bin/cloud}\n"), "dev.yaml:1:11: provider exec has no command | add the program that creates machines: `command: [/usr/local/bin/my-cloud]`\n" +
			`dev.yaml:1:35: provider.command is the text "/bin/cloud", it has to be a list | write it as a list: [/bin/cloud]`},
		{"a subnet that is no network", top("provider: {driver: nspawn, subnet: ten}\n"), `dev.yaml:1:36: provider.subnet "ten": it is not an IPv4 network | write it like 10.77.0.0/16`},
		{"an address as a subnet", top("provider: {driver: nspawn, subnet: 10.77.1.2/16}\n"), `dev.yaml:1:36: provider.subnet "10.77.1.2/16": it has bits after its prefix length | did you mean 10.77.0.0/16?`},
		{"a folder that is not absolute", top("provider: {driver: local, folder: x}\n"), `dev.yaml:1:35: provider.folder "x": it is not like /var/lib/pulley-machines`},
		{"a flag as text", top("provider: {driver: openstack, config_drive: 'true'}\n"), `dev.yaml:1:45: provider.config_drive is text, not true or false | write it without quotes: true`},
		{"a flag of another spelling", web("    protected: yes\n"), `dev.yaml:4:16: protected is the text "yes", not true or false`},

		{"a flavor without mapping", "provider: openstack\nflavors: {small: m1.small}\nroles:\n  web: {cardinality: 1, flavor: smal}\n",
			`dev.yaml:4:33: flavor "smal" of role "web" has no entry in flavors | did you mean small?`},
		{"an image without mapping", "provider: openstack\nimages: {debian: d-12, alma: a-9}\nroles:\n  web: {cardinality: 1, image: windows}\n",
			`dev.yaml:4:32: image "windows" of role "web" has no entry in images | there is alma and debian`},
		{"a network without mapping", "provider: openstack\nnetworks: {front: 5c}\nroles:\n  web: {cardinality: 1, networks: [front, back]}\n",
			`dev.yaml:4:43: network "back" of role "web" has no entry in networks | there is front`},
		{"a mapping to a number", top("flavors: {small: 4}\n"), `dev.yaml:1:18: flavors.small is the integer "4", not text | put quotes around it: "4"`},
		{"a mapping to nothing", top("flavors: {small: }\n"), `dev.yaml:1:18: flavors.small has no value, it has to be text`},

		{"after a role that was removed", web("    after: [db]\n"), `dev.yaml:4:13: role "web" comes after "db", and there is no such role | the roles are web; where "db" was removed, leave it out here`},
		{"after a role with a slip", "roles:\n  db: {cardinality: 1}\n  web: {cardinality: 1, after: [dbb]}\n", `dev.yaml:3:33: role "web" comes after "dbb", and there is no such role | did you mean db?`},
		{"after itself", web("    after: [web]\n"), `dev.yaml:4:13: role "web" comes after itself | leave it out`},
		{"after one twice", "roles:\n  db: {cardinality: 1}\n  web: {cardinality: 1, after: [db, db]}\n", `dev.yaml:3:37: role "web" comes after "db" twice | keep one of them`},
		{"reacts to an unknown role", web("    reacts_to: [lb]\n"), `dev.yaml:4:17: role "web" reacts to "lb", and there is no such role | the roles are web; where "lb" was removed, leave it out here`},
		{"a cycle", "roles:\n  web: {cardinality: 1, after: [db]}\n  db: {cardinality: 1, after: [cache]}\n  cache: {cardinality: 1, after: [web]}\n",
			"dev.yaml:4:34: after makes a cycle: cache → web → db → cache | a role's machines are created after those of the roles in its `after`: remove one of these dependencies"},
		{"two cycles, and one who waits for them", "roles:\n  a: {cardinality: 1, after: [b]}\n  b: {cardinality: 1, after: [a]}\n  c: {cardinality: 1, after: [d, a]}\n  d: {cardinality: 1, after: [c]}\n  e: {cardinality: 1, after: [a, c]}\n",
			"dev.yaml:2:30: after makes a cycle: a → b → a | a role's machines are created after those of the roles in its `after`: remove one of these dependencies\n" +
				"dev.yaml:4:30: after makes a cycle: c → d → c | a role's machines are created after those of the roles in its `after`: remove one of these dependencies"},

		{"a batch of none", web("    replace: {batch: 0}\n"), `dev.yaml:4:22: replace.batch "0": it is not a number of at least 1, or a percentage like 25%`},
		{"more than all", web("    replace: {batch: 101%}\n"), `dev.yaml:4:22: replace.batch "101%": it is not a number of at least 1, or a percentage like 25%`},
		{"a share of a half", web("    replace: {failures: 2.5}\n"), `dev.yaml:4:25: replace.failures is the decimal number "2.5", it has to be a number like 2, or a share like 25%`},
		{"a time without a unit", web("    replace: {timeout: 30}\n"), `dev.yaml:4:24: replace.timeout is the integer "30", not a time | write it with units, like 90s, 30m or 1h30m`},
		{"a time of no length", web("    replace: {timeout: 0s}\n"), `dev.yaml:4:24: replace.timeout must be longer than zero | write it with units, like 90s, 30m or 1h30m`},
		{"a time of days", web("    replace: {timeout: 25h}\n"), `dev.yaml:4:24: replace.timeout: it is 25h0m0s, at most 24h0m0s are allowed`},
		{"a key of replace with a slip", web("    replace: {bach: 2}\n"), `dev.yaml:4:15: replace has no key "bach" | did you mean batch?`},

		{"a report processor", top("puppet: {reports: [http, puppetdb], reporturl: https://x.example/r}\n"), ""},
		{"a report processor without its URL", top("puppet: {reports: [http]}\n"), `dev.yaml:1:19: reports: http needs a URL | write reporturl: https://dashboard.example/reports beside it`},
		{"a report processor that fills the disk", top("puppet: {reports: [store]}\n"), `dev.yaml:1:20: puppet.reports "store": nodes keep their reports themselves, and nothing would remove the files of store | name other report processors, or leave reports out`},
		{"a report processor's URL", top("puppet: {reporturl: example}\n"), `dev.yaml:1:21: puppet.reporturl "example": it is not like https://dashboard.example/reports`},
		{"an extension with a space", web("    trusted: {a b: x}\n"), `dev.yaml:4:20: trusted "a b": names of extensions may contain letters, digits, _ and ., like pp_role or 1.3.6.1.4.1.34380.1.2.1`},
		{"an extension of two lines", top("trusted: {pp_role: \"x\\ny\"}\n"), `dev.yaml:1:20: trusted.pp_role "x\ny": only printable characters are allowed, with no space at the ends`},
		{"an extension that is a number", top("trusted: {pp_zone: 3}\n"), `dev.yaml:1:20: trusted.pp_zone is the integer "3", not text | put quotes around it: "3"`},
		{"an extension that Ruby takes for a boolean", web("    trusted: {pp_zone: yes, pp_role: 'on'}\n"), `dev.yaml:4:24: trusted.pp_zone is the boolean "yes", not text | put quotes around it: "yes"`},
		{"a label that Ruby takes for a boolean", web("    labels: {spot: yes}\n"), ""},
		{"a node beyond the cardinality", top("nodes: {web9: {trusted: {pp_role: x}}}\n"), `dev.yaml:1:9: node "web9": it is neither a node by the cardinalities nor a member of a role | leave it out, or write its name like web1`},
		{"a node with a stack", top("nodes: {web1_t42: {}}\n"), `dev.yaml:1:9: node "web1_t42": it has a stack, and one file serves all stacks | write web1`},
		{"a node's extension", "nodes: {web1: {trusted: {pp_role: x}}, old.example: {trusted: {pp_role: y}}}\nroles: {web: {cardinality: 1, members: [old.example]}}\n", ""},

		{"a label that would be taken for the mark", web("    labels: {Pulley-owner: x}\n"), `dev.yaml:4:28: labels "Pulley-owner": labels that begin with pulley are reserved for Pulley`},
		{"a label with a space", web("    labels: {a b: x}\n"), `dev.yaml:4:19: labels "a b": label keys may contain letters, digits and . _ / -, at most 63 characters`},
		{"a label of two lines", web("    labels: {a: \"x\\ny\"}\n"), `dev.yaml:4:17: labels.a "x\ny": only printable characters are allowed, with no space at the ends`},
		{"a network twice is two cards", web("    networks: [a, a]\n"), ""},

		{"a member that is a node already", web("    members: [web3]\n"), `dev.yaml:4:15: member "web3" of role "web": it is a node of role "web" already, by its cardinality | leave it out of members`},
		{"a member with a number too high", web("    members: [web4]\n"), "dev.yaml:4:15: member \"web4\" of role \"web\": its name is that of node 4 of role \"web\", which has 3 | write `cardinality: 4`, or give its full domain name"},
		{"a member whose name says another role", "roles:\n  web: {cardinality: 1}\n  db: {members: [web3]}\n", `dev.yaml:3:18: member "web3" of role "db": its name is that of a node of role "web" | list it in the role of its name, or rename the machine`},
		{"a member of another stack", "stack: t42\n" + web("    members: [web1-t43]\n"), `dev.yaml:5:15: member "web1-t43" of role "web": its name is that of a node of dev@t43 | rename the machine, or give its full domain name`},
		{"a member of two roles", "roles:\n  web: {members: [x.example]}\n  db: {members: [x.example]}\n", `dev.yaml:3:18: member "x.example" of role "db": role "web" has it already | a machine is of one role`},
		{"a member twice", "roles:\n  web: {members: [x, x]}\n", `dev.yaml:2:22: member "x" of role "web": it appears twice | a machine is of one role`},
		{"a member with capitals", "roles:\n  web: {members: [X.example]}\n", `dev.yaml:2:19: members of "web": cannot use machine name "X.example": Puppet takes no capitals in names | did you mean x.example?`},
		{"a domain name is never a node", web("    members: [web3.example.com, old.example.com]\n"), ""},
		{"members instead of a number", "roles:\n  web: {members: [old]}\n", ""},

		{"a server without https", top("userdata: {servers: ['http://x']}\n"), `dev.yaml:1:22: userdata.servers.0 "http://x": it is not like https://pulley.example:8443`},
		{"a server without a pin, which the connection to etcd has", "userdata: {servers: ['https://x']}\nroles: {web: {cardinality: 1}}\n", ""},
		{"an own script that nothing runs", web("    userdata: {pre: ['echo']}\n"), `dev.yaml:4:22: userdata.pre.0: it is not a text that begins with a line such as #!/bin/sh, without line ends of Windows`},
		{"a schedule of four fields", web("    userdata: {schedule: '* * * *'}\n"), `dev.yaml:4:26: userdata.schedule "* * * *": it has 4 fields, and a schedule of cron has 5 | write it like */5 * * * *, or @hourly`},
		{"a schedule that cron refuses", web("    userdata: {schedule: '99 99 * * *'}\n"), `dev.yaml:4:26: userdata.schedule "99 99 * * *": minute "99": "99" is not from 0 to 59 | write it like */5 * * * *, or @hourly`},
		{"an interval that never comes", "provider: {driver: local, interval: '0 0 31 2 *'}\nroles: {web: {cardinality: 1}}\n", `dev.yaml:1:37: provider.interval "0 0 31 2 *": it never occurs: no year has such a day | write it like @every 10s, or */5 * * * *`},
		{"an architecture that there is not", web("    userdata: {agent_sha256: {x86: '" + strings.Repeat("0", 64) + "'}}\n"), `dev.yaml:4:36: userdata.agent_sha256.x86: agent_sha256 has no key "x86" | its keys are amd64, arm64, any`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Parse("dev.yaml", []byte(c.yaml))
			if c.want == "" {
				if err != nil {
					t.Errorf("it is refused: %v", err)
				}
				return
			}
			if got := problemLines(t, err); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// A cycle of a thousand roles is one mistake. It must be reported completely, and found within a minute.
func TestCycleOfAThousandRoles(t *testing.T) {
	name := func(i int) string {
		return "r" + strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%03d", i))
	}
	e := &Environment{Name: "dev"}
	for i := range maxRoles {
		r := Role{Name: name(i), After: []string{name((i + 1) % maxRoles)}}
		if i == 0 {
			r.After = nil
			for j := 1; j < maxRoles; j++ { // the shortest cycle goes through the last role
				r.After = append(r.After, name(j))
			}
		}
		e.Roles = append(e.Roles, r)
	}
	var got []string
	e.check(false, func(_ spot, flaw *model.Error) { got = append(got, flaw.Problem) })
	if len(got) != 1 || got[0] != "after makes a cycle: raaa → rjjj → raaa" {
		t.Errorf("got %d problems: %.200q", len(got), got)
	}
	e.Roles[0].After = []string{name(1)}
	got = nil
	e.check(false, func(_ spot, flaw *model.Error) { got = append(got, flaw.Problem) })
	if len(got) != 1 || strings.Count(got[0], "→") != maxRoles || !strings.HasSuffix(got[0], "→ rjjj → raaa") {
		t.Errorf("got %d problems: %.200q", len(got), got)
	}
}

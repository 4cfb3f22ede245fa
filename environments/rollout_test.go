package environments

import (
	"errors"
	"slices"
	"testing"
)

// A mistake in the policy would stop, or not stop, a rollout at night.
func TestRolloutPolicyIsChecked(t *testing.T) {
	const roles = "roles:\n  web: {cardinality: 2}\n  db: {cardinality: 1}\n"
	for _, c := range []struct{ sentence, text, want string }{
		{"the old name", "roles:\n  web: {cardinality: 1, rollout: {batch: 2}}\n",
			"dev.yaml:2:25: role \"web\" has no key \"rollout\" | write `replace:` for the limits of replaced machines; `rollout: {roles: …}` of the environment has those of staged rollouts"},
		{"an unknown key", roles + "rollout: {canary: 1}\n", `dev.yaml:4:11: rollout has no key "canary" | did you mean canaries?`},
		{"no share", roles + "rollout: {batch: 0}\n", `dev.yaml:4:18: rollout.batch "0": it is not a number of at least 1, or a percentage like 25%`},
		{"no number", roles + "rollout: {retries: -1}\n", `dev.yaml:4:20: rollout.retries: it is -1, below 0`},
		{"another word", roles + "rollout: {promote: auto}\n", `dev.yaml:4:20: rollout.promote "auto": it is automatic, manual or batches`},
		{"a treatment", roles + "rollout: {unready: ignore}\n", "dev.yaml:4:20: rollout.unready \"ignore\": it is wait, skip or fail | or name causes: `unready: {silent: skip, stuck: fail}`"},
		{"a treatment of a cause", roles + "rollout: {unready: {stuck: ignore}}\n", `dev.yaml:4:28: rollout.unready.stuck "ignore": it is wait, skip or fail`},
		{"an unknown cause", roles + "rollout: {unready: {sient: skip}}\n", `dev.yaml:4:21: rollout.unready has no key "sient" | did you mean silent?`},
		{"a list of treatments", roles + "rollout: {unready: [skip]}\n", `dev.yaml:4:20: rollout.unready is a list, it has to be keys with values`},
		{"a negative sample", roles + "rollout: {sample: -1}\n", `dev.yaml:4:19: rollout.sample: it is -1, below 0`},
		{"a consequence", roles + "rollout: {on_failure: stop}\n", `dev.yaml:4:23: rollout.on_failure "stop": it is either pause or revert`},
		{"a long time", roles + "rollout: {progress: 721h}\n", `dev.yaml:4:21: rollout.progress: it is 721h0m0s, at most 720h0m0s are allowed`},
		{"a deadline as long as the default of progress", roles + "rollout: {deadline: 2h}\n",
			`dev.yaml:4:21: rollout.progress is 2h0m0s, and a node has 2h0m0s until its deadline: the rollout would pause before it | write a longer progress`},
		{"progress of the default of the deadline", roles + "rollout: {progress: 1h}\n",
			`dev.yaml:4:21: rollout.progress is 1h0m0s, and a node has 1h0m0s until its deadline: the rollout would pause before it | write a longer progress`},
		{"none of a rack", "layers: [node, rack, role, environment, common]\n" + roles + "rollout: {max_unavailable: {rack: 0}}\n", `dev.yaml:5:35: rollout.max_unavailable.rack: it is 0, below 1`},
		{"a share of a rack", roles + "rollout: {max_unavailable: {rack: 10%}}\n", `dev.yaml:4:35: rollout.max_unavailable.rack is the text "10%", not an integer`},
		{"a role as a place", roles + "rollout: {max_unavailable: {role: 1}}\n",
			`dev.yaml:4:35: rollout.max_unavailable has the layer role | name an attribute; batch limits the nodes of a role`},
		{"a place that is no attribute", roles + "rollout: {max_unavailable: {networking.domain: 1}}\n",
			`dev.yaml:4:48: rollout.max_unavailable has "networking.domain", which is neither an attribute nor a trusted fact | add it to layers, and give it to nodes as an attribute; or add the fact to rollout.trusted_facts, and let each node choose its own`},
		{"a number of places of a fact that nobody trusts", roles + "rollout: {max_places: {networking.domain: 1}}\n",
			`dev.yaml:4:43: rollout.max_places has "networking.domain", which is neither an attribute nor a trusted fact | add it to layers, and give it to nodes as an attribute; or add the fact to rollout.trusted_facts, and let each node choose its own`},
		{"a trusted fact without a limit", roles + "rollout: {trusted_facts: [networking.domain]}\n",
			`dev.yaml:4:26: rollout.trusted_facts has "networking.domain", and no limit uses it | remove it, or name it in max_unavailable or max_places`},
		{"an attribute among the trusted facts", "layers: [node, rack, role, environment, common]\n" + roles + "rollout: {max_places: {rack: 1}, trusted_facts: [rack]}\n",
			`dev.yaml:5:49: rollout.trusted_facts has "rack", and its values are attributes of this file | remove it`},
		{"a window without a zone", roles + "rollout: {windows: [mon 09:00-10:00]}\n",
			`dev.yaml:4:21: rollout.windows "mon 09:00-10:00": it is not days, hours and a time zone | write it like mon-fri 22:00-04:00 Europe/Berlin`},
		{"a window of an unknown zone", roles + "rollout: {windows: [mon 09:00-10:00 Europe/Bonn]}\n",
			`dev.yaml:4:21: rollout.windows "mon 09:00-10:00 Europe/Bonn": there is no time zone "Europe/Bonn" | write the name of a zone of the IANA database, like UTC or Europe/Berlin`},
		{"a window of no length", roles + "rollout: {windows: [mon 09:00-09:00 UTC]}\n",
			`dev.yaml:4:21: rollout.windows "mon 09:00-09:00 UTC": it ends when it begins | a whole day is 00:00-24:00`},
		{"an unknown role", roles + "rollout: {roles: {wbe: {batch: 1}}}\n", `dev.yaml:4:19: rollout.roles has "wbe", and there is no such role | did you mean web?`},
		{"after an unknown role", roles + "rollout: {roles: {web: {after: [dbs]}}}\n",
			`dev.yaml:4:33: role "web" takes targets after "dbs", and there is no such role | did you mean db?`},
		{"a cycle", roles + "rollout: {roles: {web: {after: [db]}, db: {after: [web]}}}\n",
			`dev.yaml:4:51: rollout.roles: after makes a cycle: db → web → db | remove one of these dependencies`},
		{"a limit of no preview", roles + "rollout: {preview: {max_changed: 5}}\n",
			`dev.yaml:4:34: rollout.preview.max_changed limits a preview that is not required | write required: true beside it`},
		{"an approval after no canaries", roles + "rollout: {canaries: 0, promote: manual}\n",
			`dev.yaml:4:33: rollout.promote: manual waits for an approval after the canaries, and canaries is 0 | write promote: batches, or canaries: 1`},
		{"a negative limit", roles + "rollout: {preview: {required: true, max_changed: -1}}\n", `dev.yaml:4:50: rollout.preview.max_changed: it is -1, below 0`},
		{"a wrong expression", roles + "rollout: {canaries_where: site ==}\n", `dev.yaml:4:27: rollout.canaries_where: column 8: it ends | write on`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Load(LoadOptions{
				File:       Source{Name: "dev.yaml", Data: []byte(c.text)},
				Expression: func(string) error { return errors.New("column 8: it ends\nwrite on") },
			})
			if got := problemLines(t, err); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A group must not begin before those on which it depends.
func TestRolloutOrder(t *testing.T) {
	for text, want := range map[string][]string{
		"roles: {web: {cardinality: 1, after: [db]}, db: {cardinality: 1}, ns: {cardinality: 1}}":                                             {"db", "ns", "web"},
		"roles: {web: {cardinality: 1, after: [db]}, db: {cardinality: 1}, ns: {cardinality: 1}}\nrollout: {roles: {db: {after: [web, ns]}}}": {"ns", "web", "db"},
	} {
		e, err := Parse("dev.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := e.RolloutOrder(); !slices.Equal(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// A word that stands for all causes must mean the same as its long form, also after it was stored.
func TestUnreadyIsAWordOrNamesCauses(t *testing.T) {
	const roles = "roles: {web: {cardinality: 1}}\n"
	for text, want := range map[string]UnreadyPolicy{
		"skip":                        {Others: "skip"},
		"{others: skip}":              {Others: "skip"},
		"{silent: skip, stuck: fail}": {Silent: "skip", Stuck: "fail"},
	} {
		e, err := Parse("dev.yaml", []byte(roles+"rollout: {unready: "+text+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		stored, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Decode(stored); err != nil || e.Rollout.Unready != want || again.Rollout.Unready != want {
			t.Errorf("%s: %+v, stored %s (%v)", text, e.Rollout.Unready, stored, err)
		}
	}
}

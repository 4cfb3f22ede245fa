package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are the command lines in the help of each verb that has none of its own.
var examples = map[string]string{
	"pulley":                   "pulley status -e dev\npulley promote 1.4.0 -e dev --role compute -m 'compute first'",
	"pulley agents":            "pulley agents list",
	"pulley agents list":       "pulley agents list",
	"pulley agents promote":    "pulley agents promote 1.5.0 -e dev --node controller1\npulley agents promote 1.5.0 -e dev",
	"pulley agents publish":    "pulley agents publish bin/pulley-agent",
	"pulley agents retry":      "pulley agents retry -e dev -m 'the disk is free again'",
	"pulley agents show":       "pulley agents show -e dev",
	"pulley agents unpin":      "pulley agents unpin -e dev --node controller1",
	"pulley auth":              "pulley auth setup --data-dir /var/lib/pulley-server",
	"pulley auth certificate":  "pulley auth certificate etcd1.pem --data-dir /var/lib/pulley-server --host etcd1.example.com",
	"pulley auth setup":        "pulley auth setup --data-dir /var/lib/pulley-server",
	"pulley ca":                "pulley ca show --data-dir /var/lib/pulley-server",
	"pulley ca admin":          "pulley ca admin --data-dir /var/lib/pulley-server",
	"pulley ca retire":         "pulley ca retire --data-dir /var/lib/pulley-server",
	"pulley ca show":           "pulley ca show --data-dir /var/lib/pulley-server",
	"pulley context delete":    "pulley context delete staging",
	"pulley context list":      "pulley context list",
	"pulley context show":      "pulley context show",
	"pulley context use":       "pulley context use staging",
	"pulley enc":               "pulley enc web1 -e dev",
	"pulley data":              "pulley data get -e dev",
	"pulley data diff":         "pulley data diff 12 -e dev",
	"pulley data edit":         "pulley data edit -e dev --role compute -m 'new time servers'",
	"pulley data export":       "pulley data export live-data -e dev",
	"pulley data get":          "pulley data get -e dev\npulley data get -e dev --role compute",
	"pulley data history":      "pulley data history -e dev --role compute",
	"pulley data import":       "pulley data import live-data -e dev --dry-run",
	"pulley data revert":       "pulley data revert 12 -e dev --dry-run",
	"pulley data set":          "pulley data set profile::base::message 'Back at noon' -e dev --role compute\npulley data set ntp::servers '[10.0.0.1, 10.0.0.2]' -e dev --dry-run",
	"pulley secret":            "pulley secret list -e dev",
	"pulley secret list":       "pulley secret list -e dev",
	"pulley secret rotate":     "pulley secret rotate -e dev --role compute --sign-key me",
	"pulley secret set":        "pulley secret set profile::db::password -e dev --role compute <password.txt",
	"pulley data unset":        "pulley data unset profile::base::message -e dev --role compute",
	"pulley demo":              "pulley demo --once",
	"pulley doctor":            "pulley doctor\npulley doctor --fix",
	"pulley env":               "pulley env plan environments/dev.yaml",
	"pulley env apply":         "pulley env apply environments/dev.yaml\npulley env apply environments/dev.yaml --replace compute2\npulley env apply environments/dev.yaml --yes --max-retire 3",
	"pulley env destroy":       "pulley env destroy environments/dev.yaml --dry-run\npulley env destroy environments/dev.yaml --stack t42",
	"pulley env history":       "pulley env history -e dev --since 24h",
	"pulley env list":          "pulley env list",
	"pulley env plan":          "pulley env plan environments/dev.yaml --set compute.cardinality=5\npulley env plan environments/dev.yaml --out dev.plan",
	"pulley env schema":        "pulley env schema > environment.schema.json",
	"pulley env show":          "pulley env show dev",
	"pulley env validate":      "pulley env validate environments/dev.yaml",
	"pulley env watch":         "pulley env watch environments/dev.yaml",
	"pulley explain":           "pulley explain controller1 -e dev",
	"pulley history":           "pulley history -e dev --limit 10",
	"pulley hold":              "pulley hold -e dev --node controller1 --why 'disk swap' --for 4h\npulley hold -e dev --stop --why 'the database is restored'",
	"pulley holds":             "pulley holds -e dev",
	"pulley init":              "pulley init control-repo",
	"pulley key create":        "pulley key create ~/.ssh/pulley",
	"pulley key list":          "pulley key list --signers allowed_signers --revoked revoked_signers",
	"pulley nodes":             "pulley nodes -e dev",
	"pulley nodes add":         "pulley nodes add controller1 -e dev\npulley nodes add db.example.com --role controller -e dev",
	"pulley nodes remove":      "pulley nodes remove controller1 -e dev -m 'its disk is broken'\npulley nodes remove controller1 -e dev --forget --yes",
	"pulley nodes run":         "pulley nodes run controller1 -e dev --wait 10m",
	"pulley nodes unlock":      "pulley nodes unlock controller1 -e dev -m 'its machine was scrapped'",
	"pulley operators":         "pulley operators list",
	"pulley operators list":    "pulley operators list",
	"pulley operators revoke":  "pulley operators revoke bob -m 'left the company'",
	"pulley promote":           "pulley promote 1.4.0 -e dev --role compute -m 'compute first'\npulley promote '~> 1.4' -e dev --dry-run\npulley promote --inherit -e dev --role compute",
	"pulley provider":          "pulley provider list environments/dev.yaml",
	"pulley provider list":     "pulley provider list environments/dev.yaml",
	"pulley provider test":     "pulley provider test --environment environments/dev.yaml",
	"pulley publish":           "pulley publish control-repo --version 1.4.0 --sign-key ~/.ssh/pulley\npulley publish control-repo --version 1.4.0 --git-ref v1.4.0",
	"pulley recover":           "pulley recover -e dev --dry-run\npulley recover -e dev --sign-key ~/.ssh/pulley",
	"pulley releases":          "pulley releases",
	"pulley releases export":   "pulley releases export 1.4.0 --to release-1.4.0",
	"pulley releases prune":    "pulley releases prune --dry-run\npulley releases prune --keep 5 --yes",
	"pulley releases show":     "pulley releases show 1.4.0",
	"pulley releases sign":     "pulley releases sign 1.4.0 --sign-key ~/.ssh/pulley",
	"pulley releases verify":   "pulley releases verify 1.4.0 --signers allowed_signers",
	"pulley releases withdraw": "pulley releases withdraw 1.4.0 -m 'it loses mails'\npulley releases withdraw 1.4.0 --undo",
	"pulley job":               "pulley job run -e dev --dry-run\npulley job run -e dev --batch 20%",
	"pulley job abort":         "pulley job abort -e dev -m 'wrong order'",
	"pulley job list":          "pulley job list -e dev",
	"pulley job retry":         "pulley job retry j7 -e dev",
	"pulley job run":           "pulley job run -e dev --dry-run\npulley job run -e dev --concurrency 50 -m 'new certificates'",
	"pulley job show":          "pulley job show -e dev\npulley job show j7 -e dev -o json",
	"pulley job watch":         "pulley job watch -e dev",
	"pulley rollout":           "pulley rollout show -e dev",
	"pulley rollout abort":     "pulley rollout abort -e dev -m 'wrong release'",
	"pulley rollout approve":   "pulley rollout approve -e dev",
	"pulley rollout list":      "pulley rollout list -e dev",
	"pulley rollout pause":     "pulley rollout pause -e dev -m 'look at compute3 first'",
	"pulley rollout resume":    "pulley rollout resume -e dev -m 'compute3 has a bad disk'",
	"pulley rollout revert":    "pulley rollout revert -e dev -m '1.5.0 stops nginx'",
	"pulley rollout show":      "pulley rollout show -e dev\npulley rollout show r41 -e dev -o json",
	"pulley rollout skip":      "pulley rollout skip compute3 -e dev",
	"pulley rollout retry":     "pulley rollout retry -e dev -m 'the mirror is back'",
	"pulley rollout watch":     "pulley rollout watch -e dev",
	"pulley rollout start":     "pulley rollout start 1.5.0 -e dev -m 'new tuning'\npulley rollout start 1.5.0 -e dev --role compute --dry-run",
	"pulley rollback":          "pulley rollback -e dev -m 'does not compile'\npulley rollback -e dev --role compute --yes\npulley rollback -e dev --to 12 --dry-run",
	"pulley runs":              "pulley runs controller1 -e dev",
	"pulley serve":             "pulley serve --auth\npulley serve --listen 10.0.0.1:2379 --data-dir /var/lib/pulley-server",
	"pulley status":            "pulley status -e dev",
	"pulley token":             "pulley token list",
	"pulley token list":        "pulley token list",
	"pulley token revoke":      "pulley token revoke 1a2b3c4d -m 'it was in a chat'",
	"pulley unhold":            "pulley unhold -e dev --node controller1",
	"pulley userdata":          "pulley userdata controller1 -e dev --new-token",
	"pulley validate":          "pulley validate control-repo\npulley validate . --strict --github",
	"pulley version":           "pulley version",
}

// aliases are the names that other tools have for a verb.
var aliases = map[string][]string{"list": {"ls"}, "remove": {"rm"}, "unset": {"rm"}, "delete": {"rm"}}

// addExamples adds examples and aliases to a command and its verbs.
func addExamples(c *cobra.Command) {
	if text, has := examples[c.CommandPath()]; has && c.Example == "" {
		c.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	c.Aliases = append(c.Aliases, aliases[c.Name()]...)
	for _, sub := range c.Commands() {
		addExamples(sub)
	}
}

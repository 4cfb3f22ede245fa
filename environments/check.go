package environments

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"pulley/environments/settings"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/schedule"
)

// spot is the part of an environment that a problem concerns: a role by its index in Roles, or noRole, and the field.
// The field "" is the role's name.
type spot struct {
	role  int
	field string
}

const noRole = -1

// checker checks an environment from any source.
type checker struct {
	*Environment
	pending bool // values that a cloud file can add may be missing
	report  func(spot, *model.Error)
}

func (c checker) flaw(at spot, what string, flaw *model.Error) {
	if flaw != nil {
		c.report(at, &model.Error{Problem: what + ": " + flaw.Problem, Advice: flaw.Advice})
	}
}

func (c checker) add(at spot, hint, format string, args ...any) {
	c.report(at, &model.Error{Problem: fmt.Sprintf(format, args...), Advice: hint})
}

// check reports everything that is wrong with e.
func (e *Environment) check(pending bool, report func(spot, *model.Error)) {
	c := checker{e, pending, report}
	c.flaw(spot{noRole, "name"}, "environment name "+model.Quoted(c.Name), model.EnvironmentFlaw(c.Name))
	if len(e.Roles) > maxRoles {
		c.add(spot{noRole, "roles"}, "", "there are %d roles, at most %d are allowed", len(e.Roles), maxRoles)
		return
	}
	c.checkValues(noRole, "", fieldsOf(e))
	c.checkRoles()
	c.checkOrder()
	c.checkMembers()
	c.checkLayers()
	c.checkRollout()
	c.checkServers()
	c.checkApplications()
	c.checkMapped()
	c.checkHalves()
}

// checkValues checks each value by the form of its field.
func (c checker) checkValues(role int, prefix string, fields []field) {
	for _, f := range fields {
		at := spot{role, prefix + f.key}
		below := func(key string) spot { return spot{role, at.field + "." + key} }
		switch v := f.value.(type) {
		case *string:
			if *v != "" {
				c.flaw(at, at.field+" "+model.Quoted(*v), f.flaw(*v))
			}
		case *int:
			switch {
			case f.key == "cardinality": // a role's, which checkRoles checks
			case f.form == "port" && (*v < 0 || *v > settings.MaxPort):
				c.add(at, "leave it out for 8140", "%s: it is %d, ports are from 1 to %d", at.field, *v, settings.MaxPort)
			case f.form != "port":
				c.flaw(at, at.field, countFlaw(*v, 0))
			}
		case *model.Duration:
			c.flaw(at, at.field, timeFlaw(f.key, *v))
		case *[]string:
			for i, item := range *v {
				c.flaw(below(strconv.Itoa(i)), at.field+" "+model.Quoted(item), f.flaw(item))
			}
		case *map[string]string:
			if f.form == "label" && len(*v) > maxLabels {
				c.add(at, "", "there are %d labels, at most %d are allowed", len(*v), maxLabels)
			}
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				in, value := below(key), (*v)[key]
				c.flaw(in, at.field+" "+model.Quoted(key), f.flaw(key))
				c.flaw(in, in.field+" "+model.Quoted(value), formFlaw(f.valueForm(), "m1.small", value))
			}
		case *map[string]NodeSettings:
			for _, name := range slices.Sorted(maps.Keys(*v)) {
				own := (*v)[name]
				c.flaw(below(name), "node "+model.Quoted(name), c.unknownNode(name))
				c.checkValues(role, at.field+"."+name+".", fieldsOf(&own))
			}
		case *map[string]int:
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				in := below(key)
				c.flaw(in, at.field+" "+model.Quoted(key), f.flaw(key))
				c.flaw(in, in.field, countFlaw((*v)[key], 1))
			}
		case *map[string]settings.PuppetServer:
			for _, name := range slices.Sorted(maps.Keys(*v)) {
				own := (*v)[name]
				c.flaw(below(name), "server "+model.Quoted(name), f.flaw(name))
				c.checkValues(role, at.field+"."+name+".", fieldsOf(&own))
			}
		case *Classification:
			c.checkClassification(at, *v)
		case *RolloutPolicy, *PreviewPolicy, *UnreadyPolicy, *settings.PuppetCA, *settings.PuppetProvision:
			c.checkValues(role, at.field+".", f.fields())
		case *map[string]RoleRollout:
			for _, name := range slices.Sorted(maps.Keys(*v)) {
				own := (*v)[name]
				c.checkValues(role, at.field+"."+name+".", fieldsOf(&own))
			}
		case *Provider:
			c.checkProvider()
		case *replace:
			c.checkValues(role, at.field+".", f.fields())
		case *settings.PuppetSettings:
			c.checkValues(role, at.field+".", f.fields())
			if slices.Contains(v.Reports, "http") && v.ReportURL == "" {
				c.add(below("reports"), "write reporturl: https://dashboard.example/reports beside it", "reports: http needs a URL")
			}
		case *HostSettings:
			c.checkValues(role, at.field+".", f.fields())
			if len(v.Exports) >= maxExports { // one is left for address_fact
				c.add(below("exports"), "name the hash that contains them, like ssh", "hosts exports %d facts, more than %d", len(v.Exports), maxExports-1)
			}
		case *Userdata:
			for _, p := range v.Problems() {
				if !p.Half {
					c.report(below(p.Field), userdataError(p))
				}
			}
		}
	}
}

// valueForm returns the form of the values of a table.
func (f field) valueForm() string {
	if f.form == "attribute" {
		return "attributevalue"
	}
	return "word"
}

// flaw returns an error unless value has the form of the field.
func (f field) flaw(value string) *model.Error { return formFlaw(f.form, f.like, value) }

func formFlaw(name, like, value string) *model.Error {
	switch name {
	case "", "role", "member", "seen": // checked together
		return nil
	case "stack":
		return model.StackFlaw(value)
	case "symbol":
		return model.FlavorFlaw(value)
	case "subnet":
		return subnetFlaw(value)
	case "network":
		if n, err := netip.ParsePrefix(value); err != nil || n.Masked() != n {
			return &model.Error{Problem: "it is not a network", Advice: "write it like 10.0.0.0/8 or fd00::/8"}
		}
		return nil
	case "address":
		if flaw := settings.AddressFlaw(value); flaw != nil {
			return flaw
		}
	case "httpsurl":
		if flaw := serviceFlaw(value, like); flaw != nil {
			return flaw
		}
	case "setting":
		if flaw := settings.SettingFlaw(value); flaw != nil {
			return flaw
		}
	case "window":
		_, flaw := parseWindow(value)
		return flaw
	case "interval":
		if _, err := schedule.Parse(value); err != nil {
			return &model.Error{Problem: err.Error(), Advice: "write it like @every 10s, or */5 * * * *"}
		}
		return nil
	case "processor":
		if value == "store" || value == "none" {
			return &model.Error{Problem: "nodes keep their reports themselves, and nothing would remove the files of store", Advice: "name other report processors, or leave reports out"}
		}
	case "label":
		if strings.HasPrefix(strings.ToLower(value), "pulley") {
			return &model.Error{Problem: "labels that begin with pulley are reserved for Pulley"}
		}
	}
	switch f := forms()[name]; {
	case value == "":
		return &model.Error{Problem: "it is empty"}
	case f.max > 0 && utf8.RuneCountInString(value) > f.max:
		return &model.Error{Problem: fmt.Sprintf("it is longer than %d characters", f.max)}
	case !f.matches.MatchString(value) || !utf8.ValidString(value) || f.not != "" && strings.ContainsRune(value, utf8.RuneError):
		if f.allowed != "" {
			return &model.Error{Problem: f.allowed}
		}
		return &model.Error{Problem: "it is not like " + like}
	}
	return nil
}

// form is the form of a value, for the checks and the schema.
type form struct {
	pattern string // with its anchors
	max     int    // characters; 0 is no limit
	not     string // a pattern that no value matches, for the schema
	allowed string // replaces the example in an error
	matches *regexp.Regexp
}

// forms compiles the patterns at their first use: an agent starts every few minutes and reads no environment file.
// Where a pattern with a count would take too long to compile, max limits the length.
var forms = sync.OnceValue(func() map[string]form {
	const printable = `\p{L}\p{M}\p{N}\p{P}\p{S}`
	const weekday, clock = `(mon|tue|wed|thu|fri|sat|sun)`, `([01][0-9]|2[0-3]):[0-5][0-9]`
	const percentage, noReplacement = `([1-9][0-9]?|100)%`, "\ufffd"
	all := map[string]form{
		"duration":   {pattern: `^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$`},
		"batch":      {pattern: `^(1000000|[1-9][0-9]{0,5}|` + percentage + `)$`, allowed: "it is not a number of at least 1, or a percentage like 25%"},
		"failures":   {pattern: `^(0|1000000|[1-9][0-9]{0,5}|` + percentage + `)$`, allowed: "it is not a number, or a percentage like 25%"},
		"promotion":  {pattern: `^(automatic|manual|batches)$`, allowed: "it is automatic, manual or batches"},
		"unready":    {pattern: `^(wait|skip|fail)$`, allowed: "it is wait, skip or fail"},
		"on_failure": {pattern: `^(pause|revert)$`, allowed: "it is either pause or revert"},
		"gate":       {pattern: `^[a-z][a-z0-9_-]{0,62}$`, allowed: "names of gates may contain small letters, digits, _ and -, like errors"},
		"window": {
			pattern: `^(daily|` + weekday + `(-` + weekday + `)?(,` + weekday + `(-` + weekday + `)?)*) ` + clock + `-(` + clock + `|24:00) [A-Za-z][A-Za-z0-9_+/-]{0,62}$`,
		},
		"expression":     {pattern: `^[^\x00]*[^\s\x00][^\x00]*$`, max: 4096},
		"label":          {pattern: `^[A-Za-z0-9._/-]{1,63}$`, not: "^[Pp][Uu][Ll][Ll][Ee][Yy]", allowed: "label keys may contain letters, digits and . _ / -, at most 63 characters"},
		"extension":      {pattern: `^[A-Za-z0-9_][A-Za-z0-9_.]{0,127}$`, allowed: "names of extensions may contain letters, digits, _ and ., like pp_role or 1.3.6.1.4.1.34380.1.2.1"},
		"datalayer":      {pattern: `^[a-z][a-z0-9_]*$`, max: maxAttribute, allowed: "a layer is node, role, environment, common, or the name of an attribute of small letters, digits and _"},
		"attribute":      {pattern: `^[a-z][a-z0-9_]*$`, max: maxAttribute, allowed: "names of attributes may contain small letters, digits and _, like site"},
		"attributevalue": {pattern: `^[a-z0-9][a-z0-9._-]*$`, max: maxAttribute, allowed: "values of attributes may contain small letters, digits and . _ -, like ams"},
		// a name at a provider
		"word":              {pattern: `^[` + printable + `]([` + printable + ` ]*[` + printable + `])?$`, max: maxWord, not: noReplacement, allowed: "only printable characters are allowed, with no space at the ends"},
		"symbol":            {pattern: `^[` + printable + `]+$`, max: model.MaxFlavor, not: noReplacement},
		"owner":             {pattern: `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`},
		"path":              {pattern: `^/[` + printable + ` ]+$`, max: maxWord},
		"bridge":            {pattern: `^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`},
		"processor":         {pattern: `^[a-z][a-z0-9_]{0,63}$`, allowed: "names of report processors may contain small letters, digits and _"},
		"fact":              {pattern: `^[A-Za-z0-9_:/*-]+(\.[A-Za-z0-9_:/*-]+)*$`, max: maxWord, allowed: "names of facts have dots between their parts, like mountpoints.*.size"},
		"export":            {pattern: `^[A-Za-z0-9_:/-]+(\.[A-Za-z0-9_:/-]+)*$`, max: maxWord, allowed: "names of facts have dots between their parts, like ssh.ed25519.key"},
		"url":               {pattern: `^https?://[` + printable + `]+$`, max: maxText},
		"httpsurl":          {pattern: `^https://[` + printable + `]+$`, max: maxText},
		"address":           {pattern: settings.AddressPattern, max: model.MaxMember, allowed: settings.NoAddress},
		"hostname":          {pattern: `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`, max: model.MaxMember, allowed: "it is not a host name in small letters"},
		"server":            {pattern: `^[a-z][a-z0-9_-]{0,62}$`, allowed: "names of servers may contain small letters, digits, _ and -, like eu1"},
		"setting":           {pattern: `^[a-z][a-z0-9_]{0,62}$`, not: settings.OwnedPattern, allowed: "names of Puppet's settings may contain small letters, digits and _, like http_read_timeout"},
		"enforce":           {pattern: `^(off|daemon)$`, allowed: "it is either off or daemon"},
		"certificates":      {pattern: `^(csr|presigned)$`, allowed: "it is either csr or presigned"},
		"puppetenvironment": {pattern: `^[a-z0-9_]+$`, max: model.MaxEnvironment, allowed: "names of Puppet's environments may contain small letters, digits and _, like bootstrap"},
		"class":             {pattern: `^[a-z][a-z0-9_]*(::[a-z][a-z0-9_]*)*$`, max: maxWord, allowed: "names of classes may contain small letters, digits, _ and ::, like role::web"},
		"variable":          {pattern: `^[a-z][A-Za-z0-9_]*$`, max: maxWord, allowed: "names of parameters begin with a small letter, and may contain letters, digits and _"},
		"command":           {pattern: `^[^\x00]*[^\s\x00][^\x00]*$`, max: 4096},
		"subnet":            {pattern: "."},
		"network":           {pattern: "."},
		"interval":          {pattern: `^(@every ([0-9]+(\.[0-9]+)?[hms])+|` + schedule.Pattern() + `)$`, max: maxText},
		"signatures":        {pattern: `^` + model.SignaturesRequired + `$`, allowed: "the only value is " + model.SignaturesRequired},
		"stack":             {pattern: `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, max: model.MaxStack},
		"role":              {pattern: `^[a-z]([a-z0-9]*[a-z])?(-[a-z0-9]*[a-z])*$`, max: model.MaxRole},
		"seen":              {pattern: `^[a-z]([a-z0-9]*[a-z])?(-[a-z0-9]*[a-z])*$`, max: model.MaxRole},
		"member":            {pattern: `^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`, max: model.MaxMember},
	}
	for name, f := range all {
		f.matches = regexp.MustCompile(f.pattern)
		all[name] = f
	}
	return all
})

// maxExports is the number of facts that a node exports, as package internal/hosts limits it.
const maxExports = 32

// AllRoles in a role's Sees stands for every role.
const AllRoles = "all"

const (
	maxText      = 2048 // bytes of a one-line value
	maxWord      = 255  // characters of a name or a path
	maxAttribute = 63   // of an attribute's name or value, as in package hieradata
	maxLabels    = 40   // of a role; clouds allow about as many, and drivers need some
)

// checkRoles checks each role, and the roles together.
func (c checker) checkRoles() {
	sum, places := 0, map[string]int{}
	goodStack := c.Stack == "" || model.StackFlaw(c.Stack) == nil
	for i, r := range c.Roles {
		if _, twice := places[r.Name]; twice {
			c.add(spot{i, ""}, "", "role %s appears twice", model.Quoted(r.Name))
		}
		places[r.Name] = i
		badName := model.RoleFlaw(r.Name)
		c.flaw(spot{i, ""}, "role "+model.Quoted(r.Name), badName)
		if badName == nil && goodStack {
			c.flaw(spot{i, ""}, "role "+model.Quoted(r.Name), hostnameFlaw(r, c.Stack))
		}
		c.flaw(spot{i, "cardinality"}, "cardinality of "+model.Quoted(r.Name), cardinalityFlaw(r.Cardinality))
		c.checkValues(i, "", fieldsOf(&r))
		before := sum
		sum += min(max(r.Cardinality, 0), maxNodes)
		if before <= maxNodes && sum > maxNodes {
			c.add(spot{i, "cardinality"}, "", "with role %s the environment has more than %d nodes", model.Quoted(r.Name), maxNodes)
		}
	}
	for i, r := range c.Roles {
		c.flaw(spot{i, ""}, "role "+model.Quoted(r.Name), overlapFlaw(r.Name, places))
	}
}

func countFlaw(n, least int) *model.Error {
	switch {
	case n < least:
		return &model.Error{Problem: fmt.Sprintf("it is %d, below %d", n, least)}
	case n > maxNodes:
		return &model.Error{Problem: fmt.Sprintf("it is %d, at most %d are allowed", n, maxNodes)}
	}
	return nil
}

func cardinalityFlaw(n int) *model.Error {
	switch {
	case n < 0:
		return &model.Error{Problem: fmt.Sprintf("it is %d, below 0", n), Advice: "0 keeps the role without nodes"}
	case n > maxNodes:
		return &model.Error{Problem: fmt.Sprintf("it is %d, an environment has at most %d nodes", n, maxNodes)}
	}
	return nil
}

// hostnameFlaw checks that the role's last node still has a valid hostname.
func hostnameFlaw(r Role, stack string) *model.Error {
	last := model.Node{Role: r.Name, Num: max(1, min(r.Cardinality, maxNodes)), Stack: stack}
	size := len(last.Hostname())
	if size <= model.MaxHostname {
		return nil
	}
	return &model.Error{
		Problem: fmt.Sprintf("the hostname of its node %s would be %d bytes long, at most %d are allowed", last, size, model.MaxHostname),
		Advice:  fmt.Sprintf("make the role's name shorter by %d", size-model.MaxHostname),
	}
}

// overlapFlaw refuses two roles that site.pp cannot distinguish: `node /^a\d+/` would match a1b1, too.
func overlapFlaw(name string, places map[string]int) *model.Error {
	for i := 1; i < len(name) && len(name) <= model.MaxRole; i++ {
		if _, other := places[name[:i]]; other && model.IsDigit(name[i]) {
			return &model.Error{Problem: fmt.Sprintf("node /^%s\\d+/ of role %s would match its nodes, too", name[:i], model.Quoted(name[:i]))}
		}
	}
	return nil
}

// checkMembers checks the existing machines of all roles. Names must be unique, and must not have the form of a node's
// name: the role in such a name could contradict the file.
func (c checker) checkMembers() {
	seen := map[string]string{}
	for i, r := range c.Roles {
		for j, name := range r.Members {
			at := spot{i, "members." + strconv.Itoa(j)}
			var bad *model.Error
			if err := model.CheckMember(name); errors.As(err, &bad) {
				c.add(at, bad.Advice, "members of %s: %s", model.Quoted(r.Name), bad.Problem)
				continue
			}
			if other, twice := seen[name]; twice {
				where := "role " + model.Quoted(other) + " has it already"
				if other == r.Name {
					where = "it appears twice"
				}
				c.add(at, "a machine is of one role", "member %s of role %s: %s", model.Quoted(name), model.Quoted(r.Name), where)
				continue
			}
			seen[name] = r.Name
			c.flaw(at, fmt.Sprintf("member %s of role %s", model.Quoted(name), model.Quoted(r.Name)), c.looksLikeNode(r, name))
		}
	}
}

// looksLikeNode returns an error if a member's name has the form of a node's name. A domain name never has it.
func (c checker) looksLikeNode(r Role, name string) *model.Error {
	n, err := model.ParseNode(name)
	if err != nil {
		if n, err = model.ParseHostname(name); err != nil || len(name) != len(n.Hostname()) {
			return nil
		}
	}
	of, has := c.Role(n.Role)
	switch {
	case !has:
		return nil
	case c.Has(n):
		return &model.Error{Problem: fmt.Sprintf("it is a node of role %s already, by its cardinality", model.Quoted(of.Name)), Advice: "leave it out of members"}
	case of.Name != r.Name:
		return &model.Error{Problem: fmt.Sprintf("its name is that of a node of role %s", model.Quoted(of.Name)), Advice: "list it in the role of its name, or rename the machine"}
	case n.Stack != c.Stack:
		return &model.Error{Problem: fmt.Sprintf("its name is that of a node of %s", model.Ref{Environment: c.Name, Stack: n.Stack}), Advice: "rename the machine, or give its full domain name"}
	}
	return &model.Error{
		Problem: fmt.Sprintf("its name is that of node %d of role %s, which has %d", n.Num, model.Quoted(r.Name), r.Cardinality),
		Advice:  fmt.Sprintf("write `cardinality: %d`, or give its full domain name", n.Num),
	}
}

// checkOrder checks the dependencies and reactions between roles.
func (c checker) checkOrder() {
	known := map[string]bool{}
	for _, r := range c.Roles {
		known[r.Name] = true
	}
	for i, r := range c.Roles {
		c.others(spot{i, "after"}, r.Name, "comes after", r.After, known)
		c.others(spot{i, "reacts_to"}, r.Name, "reacts to", r.ReactsTo, known)
		c.seen(i, r, known)
	}
	after := map[string][]string{}
	for _, r := range c.Roles {
		after[r.Name] = r.After
	}
	for _, cycle := range cycles(after) {
		first := cycle[0]
		at := slices.IndexFunc(c.Roles, func(r Role) bool { return r.Name == first })
		c.add(spot{at, "after"}, "a role's machines are created after those of the roles in its `after`: remove one of these dependencies",
			"after makes a cycle: %s → %s", strings.Join(cycle, " → "), first)
	}
}

// seen checks the roles that a role sees. It may see itself.
func (c checker) seen(i int, r Role, known map[string]bool) {
	for j, name := range r.Sees {
		at := spot{i, "sees." + strconv.Itoa(j)}
		switch {
		case slices.Contains(r.Sees[:j], name):
			c.add(at, "keep one of them", "role %s sees %s twice", model.Quoted(r.Name), model.Quoted(name))
		case name == AllRoles && len(r.Sees) > 1:
			c.add(at, "write `sees: [all]`", "role %s sees all roles and further ones", model.Quoted(r.Name))
		case name != AllRoles && !known[name]:
			c.add(at, noRoleHint(name, c.RoleNames()), "role %s sees %s, and there is no such role", model.Quoted(r.Name), model.Quoted(name))
		}
	}
}

// others checks the names of other roles in a list of a role.
func (c checker) others(list spot, role, verb string, names []string, known map[string]bool) {
	seen := map[string]bool{}
	for j, name := range names {
		at := spot{list.role, list.field + "." + strconv.Itoa(j)}
		switch {
		case name == role:
			c.add(at, "leave it out", "role %s %s itself", model.Quoted(role), verb)
		case !known[name]:
			c.add(at, noRoleHint(name, c.RoleNames()), "role %s %s %s, and there is no such role", model.Quoted(role), verb, model.Quoted(name))
		case seen[name]:
			c.add(at, "keep one of them", "role %s %s %s twice", model.Quoted(role), verb, model.Quoted(name))
		default:
			seen[name] = true
		}
	}
}

func noRoleHint(name string, known []string) string {
	if near := model.SuggestName(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return fmt.Sprintf("the roles are %s; where %s was removed, leave it out here", listed(known[:min(len(known), 20)]), model.Quoted(name))
}

// unknownNode returns an error unless name, without a stack, is a node or a member of a role.
func (c checker) unknownNode(name string) *model.Error {
	for _, r := range c.Roles {
		if slices.Contains(r.Members, name) {
			return nil
		}
	}
	n, err := model.ParseNode(name)
	switch {
	case err == nil && n.Stack != "":
		return &model.Error{Problem: "it has a stack, and one file serves all stacks", Advice: "write " + model.Node{Role: n.Role, Num: n.Num}.String()}
	case err == nil && c.Has(model.Node{Role: n.Role, Num: n.Num, Stack: c.Stack}):
		return nil
	}
	return &model.Error{Problem: "it is neither a node by the cardinalities nor a member of a role", Advice: "leave it out, or write its name like web1"}
}

// cycles returns cycles of roles that depend on each other: the shortest one of each first role by name, unless it shares
// a role with an earlier cycle. Each role in it comes after the next one, and the last one after the first.
func cycles(of map[string][]string) [][]string {
	after := map[string][]string{}
	for name, others := range of {
		after[name] = slices.Sorted(slices.Values(others))
	}
	var cycles [][]string
	reported := map[string]bool{}
	for _, start := range slices.Sorted(maps.Keys(after)) {
		cycle := cycleOf(after, start)
		if slices.ContainsFunc(cycle, func(name string) bool { return reported[name] }) {
			continue
		}
		for _, name := range cycle {
			reported[name] = true
		}
		if cycle != nil {
			cycles = append(cycles, cycle)
		}
	}
	return cycles
}

// cycleOf returns the shortest path from a role back to itself, which has at least two roles; nil if there is none.
func cycleOf(after map[string][]string, start string) []string {
	from, queue := map[string]string{}, []string{start}
	for ; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		for _, next := range after[name] {
			if next == start && name != start {
				path := []string{name}
				for name != start {
					name = from[name]
					path = append(path, name)
				}
				slices.Reverse(path)
				return path
			}
			if _, seen := from[next]; !seen && next != start {
				from[next] = name
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// checkHalves reports settings that need another setting which neither the role nor the environment has.
func (c checker) checkHalves() {
	if c.pending {
		return
	}
	reported := map[string]bool{}
	paused := c.Silence == 0 // also after the first role whose pauses are too long
	for i, r := range c.Roles {
		settings := c.UserdataOf(r)
		if text := cmp.Or(settings.Schedule, schedule.Default); !paused && !reported["schedule "+text] {
			reported["schedule "+text] = true
			if gap := schedule.Longest(text); time.Duration(c.Silence) < 2*gap {
				paused = true
				advice := "write at least " + model.Duration(2*gap).String() + ", twice that time"
				if timeFlaw("silence", model.Duration(2*gap)) != nil {
					advice = "leave silence out, or let these nodes tick more often"
				}
				c.add(spot{noRole, "silence"}, advice, "silence: it is %s, and nodes of role %s do not tick for %s, by userdata.schedule", c.Silence, model.Quoted(r.Name), model.Duration(gap))
			}
		}
		for _, p := range settings.Problems() {
			if !p.Half {
				continue
			}
			at := spot{i, "userdata." + p.Field}
			if !slices.ContainsFunc(r.Userdata.Problems(), func(own *firstboot.Problem) bool { return own.Half && own.Field == p.Field }) {
				at.role = noRole
			}
			if id := strconv.Itoa(at.role) + at.field; !reported[id] {
				reported[id] = true
				c.report(at, userdataError(p))
			}
		}
	}
}

func userdataError(p *firstboot.Problem) *model.Error {
	return &model.Error{Problem: "userdata." + p.Error(), Advice: p.Advice}
}

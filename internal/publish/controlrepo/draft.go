package controlrepo

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/model"
)

// Draft is an environment file with the roles that the repository suggests.
type Draft struct {
	File string `json:"file"`
	Text string `json:"text"`
}

const (
	draftFile    = "environments/production.yaml"
	draftName    = "production"
	maxDraft     = 200 // roles
	maxDraftSize = 200 // members of all roles

	maxGuessedNodes = 1000 // of a role
)

// guess is a role that the repository suggests.
type guess struct {
	from    string // file or manifest that suggests it
	value   string // of an extension such as pp_role, or a host's name
	host    bool   // value is only a host's name
	shared  bool   // another value has the same name of a role
	members []string
	others  map[string]*guess // by value: of the same name
}

// guesses are the suggested roles by name.
type guesses map[string]*guess

// addHost adds the role of a host under a valid name: web01 and web02 are of one role.
func (g guesses) addHost(host, from string) *guess {
	name := roleName(host)
	if name == "" {
		return &guess{} // nobody reads it
	}
	if g[name] == nil {
		g[name] = &guess{from: from, value: host, host: true}
	}
	return g[name]
}

// add adds a role under a valid name. value is how the repository spells it. Another value of the same name is another
// role, with a suffix: tier1 becomes tier, and tier2 becomes tier-b.
func (g guesses) add(value, from string) *guess {
	name := roleName(value)
	if name == "" {
		return &guess{} // nobody reads it
	}
	first, class := g[name], withoutRole(value)
	switch {
	case first == nil:
		g[name] = &guess{from: from, value: value}
		return g[name]
	case first.host:
		first.from, first.value, first.host = from, value, false
		return first
	case withoutRole(first.value) == class:
		return first
	case first.others[class] != nil:
		return first.others[class]
	case first.others == nil:
		first.others = map[string]*guess{}
	}
	stem := strings.TrimRight(name[:min(len(name), maxStem)], "0123456789-")
	for n := len(first.others) + 1; ; n++ {
		if other := stem + "-" + letters(n); g[other] == nil {
			g[other] = &guess{from: from, value: value, shared: true}
			first.shared, first.others[class] = true, g[other]
			return g[other]
		}
	}
}

// maxStem leaves room for a suffix: the name of a role has at most 62 bytes.
const maxStem = 54

// letters counts in letters, because the name of a role does not end in a digit: a, b, … z, ba, bb.
func letters(n int) string {
	text := string(rune('a' + n%26))
	if n < 26 {
		return text
	}
	return letters(n/26) + text
}

// withoutRole returns the class web of role::web.
func withoutRole(value string) string {
	if m := roleClass.FindStringSubmatch(value); m != nil {
		return m[1]
	}
	return value
}

// roleName makes a valid name of a role from a name of a class, a file or a host: web_server01 becomes web-server. It
// returns "" if nothing is left.
func roleName(original string) string {
	name := strings.ToLower(original)
	name = name[strings.LastIndex(name, "::")+1:]
	var parts []string
	for _, part := range strings.FieldsFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') }) {
		if part = strings.TrimRight(part, "0123456789"); part != "" {
			parts = append(parts, part)
		}
	}
	name = strings.TrimLeft(strings.Join(parts, "-"), "0123456789-")
	if model.CheckRole(name) != nil {
		return ""
	}
	return name
}

// draft guesses the roles: from values of a variable that is called role, from classes role::NAME, from node
// declarations, and from data files of nodes.
func (r *reading) draft() *Draft {
	all := guesses{}
	paths := hieradata.Locations(r.files["hiera.yaml"])
	for _, value := range r.captured(paths, roleVariable) {
		all.add(value.text, value.file)
	}
	for _, name := range slices.Sorted(maps.Keys(r.modes)) {
		if class := r.layout.autoloaded(name); roleClass.MatchString(class) && !r.vendored(name) && strings.Contains(name, "/manifests/") {
			all.add(roleClass.FindStringSubmatch(class)[1], name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if r.isSite(name) {
			for _, b := range nodeBlocks(name, r.lex(name)) {
				all.addBlock(b)
			}
		}
	}
	taken := map[string]bool{}
	for _, g := range all {
		for _, m := range g.members {
			taken[m] = true
		}
	}
	for _, value := range r.captured(paths, nodeVariable) {
		if value.text != "default" && !taken[value.text] && model.CheckMember(value.text) == nil {
			taken[value.text] = true
			g := all.addHost(firstLabel(value.text), value.file)
			g.members = append(g.members, value.text)
		}
	}
	return &Draft{draftFile, r.write(all)}
}

// addBlock adds the roles of a node declaration.
func (g guesses) addBlock(b nodeBlock) {
	role := ""
	for _, class := range b.classes {
		if m := roleClass.FindStringSubmatch(class); m != nil {
			role = m[1]
		}
	}
	for _, m := range b.matchers {
		switch {
		case m.text == "default" && m.kind == word:
		case m.kind == regex:
			if literal := literalPrefix.FindStringSubmatch(m.text); literal != nil {
				g.addEither(role, literal[1], b.file)
			}
		case model.CheckMember(m.text) == nil:
			one := g.addEither(role, firstLabel(m.text), b.file)
			one.members = append(one.members, m.text)
		}
	}
}

// addEither adds a role, or the role of a host if there is none.
func (g guesses) addEither(role, host, from string) *guess {
	if role == "" {
		return g.addHost(host, from)
	}
	return g.add(role, from)
}

func firstLabel(host string) string {
	label, _, _ := strings.Cut(host, ".")
	return label
}

var (
	onServer      = regexp.MustCompile(`^/etc/puppet(?:labs/code)?/environments/[^/]+/`) // the repository, as a Puppet server has it
	roleClass     = regexp.MustCompile(`^roles?::(.+)$`)
	literalPrefix = regexp.MustCompile(`^(?:\^|\\A)?([a-z][a-z-]*)`)
	interpolation = regexp.MustCompile(`%\{[^}]*\}`)
	roleVariable  = regexp.MustCompile(`^%\{(?:::)?(?:[\w.]*[._])?role\}$`)
	nodeVariable  = regexp.MustCompile(`^%\{(?:::)?(?:trusted\.certname|trusted\.hostname|clientcert|fqdn|hostname|facts\.(?:fqdn|hostname|networking\.fqdn|networking\.hostname|clientcert))\}$`)
)

type capturedValue struct{ text, file string }

// captured returns the values that data files have at the place of a variable in their path: web for role/web.yaml of
// role/%{role}.yaml. A file that another level names is none of them.
func (r *reading) captured(paths []string, variable *regexp.Regexp) []capturedValue {
	var out []capturedValue
	for _, p := range paths {
		re := pathForm(onServer.ReplaceAllString(p, ""), variable)
		if re.NumSubexp() == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(r.modes)) {
			if m := re.FindStringSubmatch(name); m != nil && !slices.Contains(paths, name) { // a level of its own
				out = append(out, capturedValue{m[1], name})
			}
		}
	}
	return out
}

// pathForm makes an expression for the data files of a path in hiera.yaml. It captures the first place of a variable,
// which may be nil.
func pathForm(p string, variable *regexp.Regexp) *regexp.Regexp {
	var form strings.Builder
	at, found := 0, false
	for _, m := range interpolation.FindAllStringIndex(p, -1) {
		form.WriteString(regexp.QuoteMeta(p[at:m[0]]))
		if variable != nil && !found && variable.MatchString(p[m[0]:m[1]]) {
			form.WriteString(`([^/]+)`)
			found = true
		} else {
			form.WriteString(`[^/]+`)
		}
		at = m[1]
	}
	form.WriteString(regexp.QuoteMeta(p[at:]))
	return regexp.MustCompile("^" + form.String() + "$") // all of it is quoted
}

// write writes the environment file. What would make it invalid is left out, and counted in a comment.
func (r *reading) write(all guesses) string {
	reads := r.extensionReads()
	var extension string // that selects the role
	var others []extensionRead
	for _, read := range reads {
		if roleVariable.MatchString("%{" + read.name + "}") {
			extension = read.name
			if len(all) > 0 {
				continue
			}
		}
		others = append(others, read)
	}
	var b strings.Builder
	b.WriteString("# Guessed by `pulley validate --adopt`. Correct the roles: which machines belong to them, and how many Pulley creates.\n")
	if len(others) > 0 {
		b.WriteString("# The code reads these trusted extensions. Remove the # of a line and write its value.\n#trusted:\n")
		for _, read := range others {
			fmt.Fprintf(&b, "#  %s: VALUE # read in %s:%d\n", read.name, read.file, read.line)
		}
	}
	head, body, left, members := b.String(), "", 0, 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		g := all[name]
		slices.Sort(g.members)
		g.members = slices.Compact(g.members)
		if body != "" && strings.Count(body, "cardinality:") == maxDraft {
			left++
			continue
		}
		with := body + g.entry(name, extension, r.extensionValue(g, extension, reads), members)
		if !isEnvironmentFile(head + "roles:\n" + with) {
			without := *g
			without.members = nil
			with = body + without.entry(name, extension, r.extensionValue(g, extension, reads), 0)
		}
		if !isEnvironmentFile(head + "roles:\n" + with) {
			left++
			continue
		}
		members += len(g.members)
		body = with
	}
	if body == "" {
		return head + "roles: {}\n"
	}
	if left > 0 {
		body += fmt.Sprintf("  # %d more roles are suggested by the repository; their names are not possible beside these, or too many\n", left)
	}
	return head + "roles:\n" + body
}

// entry writes one role. Members that are called like a node of the role (web1) are its nodes.
func (g *guess) entry(name, extension, value string, before int) string {
	var b strings.Builder
	members, cardinality := []string{}, 0
	for _, m := range g.members {
		if n, err := model.ParseNode(m); err == nil && n.Role == name && n.Stack == "" && n.Num <= maxGuessedNodes {
			cardinality = max(cardinality, n.Num)
		} else {
			members = append(members, m)
		}
	}
	from := g.from
	if g.shared {
		from += ", stands for " + g.value
	}
	fmt.Fprintf(&b, "  %s: # %s\n    cardinality: %d\n", name, comment1(from), cardinality)
	if extension != "" {
		fmt.Fprintf(&b, "    trusted: {%s: %q}\n", extension, value)
	}
	if len(members) > 0 {
		shown := members[:max(0, min(len(members), maxDraftSize-before))]
		b.WriteString("    members:\n")
		for _, m := range shown {
			fmt.Fprintf(&b, "      - %s\n", m)
		}
		if len(shown) == 0 {
			return strings.TrimSuffix(b.String(), "    members:\n") + fmt.Sprintf("    # and %d members\n", len(members))
		}
		if more := len(members) - len(shown); more > 0 {
			fmt.Fprintf(&b, "    # and %d more\n", more)
		}
	}
	return b.String()
}

// comment1 makes a text fit for a comment of one line.
func comment1(text string) string { return strings.Join(strings.Fields(text), " ") }

// extensionValue returns the value of the extension for a role: its name as the data spells it, or the class if code
// includes the value itself.
func (r *reading) extensionValue(g *guess, extension string, reads []extensionRead) string {
	for _, read := range reads {
		if read.name == extension && read.class && (!strings.Contains(g.value, "::") || path.Ext(g.from) == ".pp") {
			return "role::" + g.value
		}
	}
	return g.value
}

// isEnvironmentFile reports whether Pulley accepts the text as an environment file.
func isEnvironmentFile(text string) bool {
	_, err := environments.Load(environments.LoadOptions{File: environments.Source{Name: path.Base(draftFile), Data: []byte(text)}})
	return err == nil
}

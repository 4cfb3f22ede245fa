package controlrepo

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"pulley/internal/model"
)

// extensionRead is a place where code or data reads a trusted extension.
type extensionRead struct {
	name, file   string
	line, column int
	class        bool // code includes the value itself: include $trusted['extensions']['pp_role']
}

// checkTrusted warns once of each extension that own code or data reads, and that an environment file does not supply to
// every role. Without environment files, nobody supplies any.
func (r *reading) checkTrusted() {
	suppliers := r.suppliers()
	files := slices.Sorted(maps.Keys(suppliers))
	for _, read := range r.extensionReads() {
		var lacking []string
		for _, file := range files {
			if roles := suppliers[file].lacks(read.name); len(roles) > 0 {
				lacking = append(lacking, file+" ("+strings.Join(roles[:min(len(roles), 5)], ", ")+")")
			}
		}
		detail := read.name
		switch {
		case len(files) > 0 && len(lacking) == 0:
			continue
		case len(lacking) > 0:
			detail += ", missing in " + strings.Join(lacking[:min(len(lacking), 5)], ", ")
		}
		r.add(finding(TrustedUnsupplied, read.file, read.line, read.column, detail))
	}
}

// extensionReads returns the first place of each extension that own code or data reads.
func (r *reading) extensionReads() []extensionRead {
	var reads []extensionRead
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		switch {
		case r.vendored(name):
		case path.Ext(name) == ".pp":
			reads = append(reads, readsOfCode(name, string(r.files[name]), r.lex(name))...)
		case r.data[name] != nil, path.Base(name) == "hiera.yaml":
			reads = append(reads, readsOfData(name, string(r.files[name]))...)
		}
	}
	var first []extensionRead
	at := map[string]int{}
	for _, read := range reads {
		i, seen := at[read.name]
		if !seen {
			at[read.name] = len(first)
			first = append(first, read)
			continue
		}
		first[i].class = first[i].class || read.class
	}
	return first
}

// maxAccess limits the tokens between $trusted and the name of an extension.
const maxAccess = 12

// readsOfCode finds $trusted['extensions']['name'], and the same with dig, get and getvar.
func readsOfCode(file, src string, tokens []token) []extensionRead {
	var reads []extensionRead
	add := func(at int, name string, class bool) {
		line := src[strings.LastIndexByte(src[:at], '\n')+1 : at]
		reads = append(reads, extensionRead{name, file, strings.Count(src[:at], "\n") + 1, utf8.RuneCountInString(line) + 1, class})
	}
	for i, t := range tokens {
		switch {
		case t.kind == text && t.whole && getvarForm.MatchString(t.text):
			add(t.at, getvarForm.FindStringSubmatch(t.text)[1], false)
		case isVariable(tokens, i) && strings.TrimPrefix(t.text, "::") == "trusted":
			if name := accessed(tokens[i+1 : min(len(tokens), i+1+maxAccess)]); name != "" {
				before := max(0, i-1)
				add(t.at, name, tokens[before].kind == word && (tokens[before].text == "include" || tokens[before].text == "contain"))
			}
		}
	}
	return reads
}

// getvarForm is the argument of getvar('trusted.extensions.pp_role').
var getvarForm = regexp.MustCompile(`^(?:::)?trusted\.extensions\.([A-Za-z0-9_]+)$`)

// accessed returns the extension that the tokens after $trusted select, or "".
func accessed(tokens []token) string {
	var keys []string
	for i, t := range tokens {
		switch {
		case t.kind == symbol && (t.text == "[" || t.text == "]" || t.text == "." || t.text == "(" || t.text == ","):
		case t.kind == word && (t.text == "dig" || t.text == "get") && i > 0 && isSymbol(tokens, i-1, "."):
		case (t.kind == text && t.whole || t.kind == word) && i > 0 && tokens[i-1].kind == symbol && tokens[i-1].text != "]":
			if keys = append(keys, strings.TrimPrefix(t.text, "extensions.")); t.text != keys[len(keys)-1] {
				return keys[len(keys)-1]
			}
			if len(keys) == 2 && keys[0] == "extensions" {
				return keys[1]
			}
		default:
			return ""
		}
	}
	return ""
}

var interpolatedExtension = regexp.MustCompile(`%\{(?:::)?trusted\.extensions\.([A-Za-z0-9_]+)\}`)

func readsOfData(file, src string) []extensionRead {
	var reads []extensionRead
	for _, m := range interpolatedExtension.FindAllStringSubmatchIndex(src, -1) {
		line := src[strings.LastIndexByte(src[:m[0]], '\n')+1 : m[0]]
		reads = append(reads, extensionRead{src[m[2]:m[3]], file, strings.Count(src[:m[0]], "\n") + 1, utf8.RuneCountInString(line) + 1, false})
	}
	return reads
}

// supplier is the part of an environment file that supplies extensions, and settings of Puppet.
type supplier struct {
	Puppet struct {
		Settings map[string]yaml.Node `yaml:"settings"`
		Servers  map[string]yaml.Node `yaml:"servers"` // they have settings of their own
	} `yaml:"puppet"`
	Userdata userdataOf           `yaml:"userdata"`
	Trusted  map[string]yaml.Node `yaml:"trusted"`
	Roles    map[string]struct {
		Userdata userdataOf           `yaml:"userdata"`
		Trusted  map[string]yaml.Node `yaml:"trusted"`
		Members  []string             `yaml:"members"`
	} `yaml:"roles"`
	Nodes map[string]struct {
		Trusted map[string]yaml.Node `yaml:"trusted"`
	} `yaml:"nodes"`
}

// suppliers returns the environment files. Invalid ones have findings of their own.
func (r *reading) suppliers() map[string]supplier {
	all := map[string]supplier{}
	for name, data := range r.files {
		var s supplier
		if IsEnvironment(name) && yaml.Unmarshal(data, &s) == nil {
			all[name] = s
		}
	}
	return all
}

// lacks returns the roles to whose nodes the file never supplies an extension.
func (s supplier) lacks(extension string) []string {
	if _, has := s.Trusted[extension]; has {
		return nil
	}
	var lacking []string
	for role, own := range s.Roles {
		_, has := own.Trusted[extension]
		for node, of := range s.Nodes {
			n, err := model.ParseNode(node)
			_, supplied := of.Trusted[extension]
			has = has || supplied && (err == nil && n.Role == role || slices.Contains(own.Members, node))
		}
		if !has {
			lacking = append(lacking, role)
		}
	}
	slices.Sort(lacking)
	return lacking
}

// agentCertificates are the settings whose files are those of puppet agent.
var agentCertificates = map[string]bool{
	"hostcert": true, "hostprivkey": true, "hostpubkey": true, "hostcrl": true, "localcacert": true, "cacert": true, "cacrl": true,
	"ssldir": true, "certdir": true, "privatekeydir": true, "publickeydir": true,
}

// agentCertificate returns the setting if a variable is $settings::hostcert or similar.
func agentCertificate(variable string) string {
	setting, ok := strings.CutPrefix(strings.TrimPrefix(variable, "::"), "settings::")
	if ok && agentCertificates[setting] {
		return fmt.Sprintf("$settings::%s", setting)
	}
	return ""
}

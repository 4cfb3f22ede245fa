package controlrepo

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/bounded"
)

// legacyFacts matches the names of Facter's legacy facts, which Puppet 8 does not have unless it is asked for them:
// https://www.puppet.com/docs/puppet/8/core_facts#legacy-facts
var legacyFacts = regexp.MustCompile(`^(?:architecture|augeasversion|bios_(?:release_date|vendor|version)|blockdevices?(?:_\w+)?|board(?:assettag|manufacturer|productname|serialnumber)|` +
	`chassis(?:assettag|type)|dhcp_servers|domain|ec2_\w+|fqdn|gid|hardwareisa|hardwaremodel|hostname|id|interfaces|ipaddress6?(?:_\w+)?|` +
	`ldom_\w+|lsb\w+|macaddress(?:_\w+)?|macosx_\w+|manufacturer|memory(?:free|size)(?:_mb)?|mtu_\w+|netmask6?(?:_\w+)?|network6?(?:_\w+)?|` +
	`operatingsystem|operatingsystem(?:maj)?release|osfamily|physicalprocessorcount|processor\d+|processorcount|productname|` +
	`ruby(?:platform|sitedir|version)|scope6(?:_\w+)?|selinux(?:_\w+)?|serialnumber|sp_\w+|ssh(?:dsa|ecdsa|ed25519|rsa)key|sshfp_\w+|` +
	`swap(?:encrypted|free|size)(?:_mb)?|system32|uptime(?:_days|_hours|_seconds)?|uuid|windows_\w+|xendomains|zones|zone_\w+|zonename)$`)

// puppet8 matches a version of a package from 8 on.
var puppet8 = regexp.MustCompile(`^(?:\d+:)?(?:[89]|[1-9]\d)\.`)

// runsPuppet8 returns an environment file whose machines get Puppet 8, without legacy facts; "" if there is none.
func (r *reading) runsPuppet8() string {
	suppliers := r.suppliers()
	for _, file := range slices.Sorted(maps.Keys(suppliers)) {
		s := suppliers[file]
		all := []userdataOf{s.Userdata}
		for _, role := range s.Roles {
			all = append(all, role.Userdata)
		}
		if s.Puppet.Settings["include_legacy_facts"].Value != "true" && slices.ContainsFunc(all, userdataOf.puppet8) {
			return file
		}
	}
	return ""
}

// userdataOf is the part of an environment file that says which Puppet is installed.
type userdataOf struct {
	Version    string `yaml:"puppet_version"`
	Repository string `yaml:"package_repo"`
}

func (u userdataOf) puppet8() bool {
	return puppet8.MatchString(u.Version) || u.Version == "" && (strings.Contains(u.Repository, "puppet8") || strings.Contains(u.Repository, "openvox8"))
}

// The places where data and templates read facts. A plain name in a template may be one of the class.
var (
	legacyInData     = regexp.MustCompile(`%\{\s*(?:(?:::)?facts\.|::)?(\w+)\s*\}`)
	legacyInTemplate = regexp.MustCompile(`(?:\[['"]::|lookupvar\(['"]::|facts\[['"])(\w+)['"]|\$::(\w+)|@(osfamily|operatingsystem\w*|fqdn|lsb\w+|ipaddress\w*|processorcount|memorysize\w*|macaddress\w*)\b`)
)

// checkLegacyFacts warns of own code, data and templates that read legacy facts, if an environment installs Puppet 8.
func (r *reading) checkLegacyFacts() {
	environment := r.runsPuppet8()
	if environment == "" {
		return
	}
	set := map[string]bool{} // by site manifests
	for name := range r.files {
		if r.isSite(name) {
			maps.Copy(set, assigned(r.lex(name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.modes)) {
		_, rest, inModule := r.layout.module(name)
		template := inModule && strings.HasPrefix(rest, "templates/")
		if r.vendored(name) {
			continue
		}
		src := string(r.files[name])
		if template {
			src = r.text(name)
		}
		seen := map[string]bool{}
		warn := func(fact string, at int) {
			if legacyFacts.MatchString(fact) && !seen[fact] && !set[fact] && !r.ownFact(fact) {
				seen[fact] = true
				r.add(findingAt(LegacyFact, name, src, at, fact+", and "+environment+" installs Puppet 8"))
			}
		}
		switch {
		case path.Ext(name) == ".pp" && r.files[name] != nil:
			eachFact(r.lex(name), warn)
		case r.data[name] != nil, path.Base(name) == "hiera.yaml":
			for _, m := range legacyInData.FindAllStringSubmatchIndex(src, -1) {
				warn(src[m[2]:m[3]], m[2])
			}
		case template:
			for _, m := range legacyInTemplate.FindAllStringSubmatchIndex(src, -1) {
				at := max(m[2], m[4], m[6])
				warn(src[at:max(m[3], m[5], m[7])], at)
			}
		}
	}
}

// text returns a file that is not too large; "" for others.
func (r *reading) text(name string) string {
	f, err := r.repo.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := bounded.Read(f, maxFileBytes)
	if err != nil {
		return ""
	}
	return string(text)
}

// eachFact calls found with the variables of a manifest that may be facts, and with the keys of $facts.
func eachFact(tokens []token, found func(name string, at int)) {
	own := assigned(tokens)
	inherits := slices.ContainsFunc(tokens, func(t token) bool { return t.kind == word && t.text == "inherits" })
	for i, t := range tokens {
		if !isVariable(tokens, i) {
			continue
		}
		name, global := strings.CutPrefix(t.text, "::")
		switch {
		case name == "facts" && isSymbol(tokens, i+1, "[") && i+2 < len(tokens) && tokens[i+2].kind == text && tokens[i+2].whole:
			found(tokens[i+2].text, tokens[i+2].at)
		case global, !own[name] && !inherits:
			found(name, t.at)
		}
	}
}

// assigned returns the variables that a manifest sets: by an assignment, or as a parameter.
func assigned(tokens []token) map[string]bool {
	own := map[string]bool{}
	pipes := false
	for i, t := range tokens {
		switch {
		case isSymbol(tokens, i, "|"):
			pipes = !pipes
		case t.kind == variable && (pipes || followedBy(tokens, i, "=") && !isSymbol(tokens, i+2, "=")):
			own[t.text] = true
		case t.kind == word && (t.text == "class" || t.text == "define" || t.text == "function"):
			for _, p := range parameters(tokens[i+1:]) {
				own[p] = true
			}
		}
	}
	return own
}

package environments

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxScript bounds a script of userdata: clouds take 16 KiB for the whole.
const maxScript = 12 << 10

// checkUserdata looks at the words that first boots are told, of a role or of all.
func (c checker) checkUserdata(role int, u Userdata) {
	one := func(key, value string, form *regexp.Regexp, like string) {
		c.flaw(spot{role, "userdata." + key}, "userdata."+key+" "+quoted(value), shape(value, form, like))
	}
	each := func(key string, values []string, form *regexp.Regexp, like string) {
		for i, value := range values {
			at := spot{role, "userdata." + key + "." + strconv.Itoa(i)}
			flaw := shape(value, form, like)
			if flaw == nil && strings.Contains(value, "://") {
				if _, err := url.Parse(value); err != nil {
					flaw = &Error{Problem: "it is no URL", Advice: "write it like " + like}
				}
			}
			if value == "" {
				flaw = &Error{Problem: "it is empty"}
			}
			c.flaw(at, "userdata."+key+" "+quoted(value), flaw)
		}
	}
	each("servers", u.Servers, shapes().url, "https://pulley.example:8443")
	each("ca", u.CA, shapes().pin, "sha256:… with 64 hex digits; `pulley serve` tells it when it starts")
	each("endpoints", u.Endpoints, shapes().endpoint, "https://etcd1.example:2379")
	each("mirrors", u.Mirrors, shapes().url, "https://mirror.example")
	each("agent_urls", u.AgentURLs, shapes().fileURL, "https://downloads.example/pulley-agent")
	for _, arch := range slices.Sorted(maps.Keys(u.AgentSHA256)) {
		key := "agent_sha256." + arch
		if !slices.Contains([]string{"amd64", "arm64", "any"}, arch) {
			c.tell(spot{role, "userdata." + key}, "it is amd64, arm64 or any", "userdata.agent_sha256: there is no architecture %s", quoted(arch))
		}
		one(key, u.AgentSHA256[arch], shapes().checksum, "64 hex digits, as sha256sum prints them")
	}
	one("puppet_package", u.PuppetPackage, shapes().pack, "openvox-agent")
	one("puppet_version", u.PuppetVersion, shapes().version, "8.19.0-1+debian12")
	one("package_repo", u.PackageRepo, shapes().line, "https://apt.example/release.deb, or deb https://apt.example stable main; without a password")
	one("proxy", u.Proxy, shapes().fileURL, "http://proxy.example:3128; without a password")
	one("schedule", u.Schedule, shapes().schedule, "*/5 * * * *")
	c.checkScripts(role, u)
}

// checkScripts looks at what is longer than a line.
func (c checker) checkScripts(role int, u Userdata) {
	if len(u.AllowedSigners) > maxScript || strings.ContainsRune(u.AllowedSigners, 0) {
		c.tell(spot{role, "userdata.allowed_signers"}, "", "userdata.allowed_signers is no text of at most %d bytes", maxScript)
	}
	for _, own := range []struct {
		key   string
		texts []string
	}{{"pre", u.Pre}, {"post", u.Post}} {
		for i, text := range own.texts {
			at := spot{role, "userdata." + own.key + "." + strconv.Itoa(i)}
			switch {
			case !shapes().script.MatchString(text):
				c.tell(at, "begin it with a line like #!/bin/sh", "userdata.%s: script %d does not say what runs it", own.key, i+1)
			case len(text) > maxScript || strings.ContainsRune(text, 0) || !utf8.ValidString(text):
				c.tell(at, "", "userdata.%s: script %d is no text of at most %d bytes", own.key, i+1, maxScript)
			}
		}
	}
	for _, step := range slices.Sorted(maps.Keys(u.Steps)) {
		at := spot{role, "userdata.steps." + step}
		if !shapes().step.MatchString(step) {
			c.tell(at, "", "userdata.steps: %s is not the name of a step", quoted(step))
		}
		instead := u.Steps[step]
		if instead == "" {
			c.tell(at, "", "userdata.steps.%s is empty", step)
		}
		c.flaw(at, "userdata.steps."+step+" "+quoted(instead), pathFlaw(instead, shapes().instead, "off, or /usr/local/bin/disks"))
	}
}

// checkJoins refuses half of what a first boot needs: what a role is told, and what all are told, are one. Servers without a pin
// are no half: whoever applies the file knows the pin from the connection to etcd.
func (c checker) checkJoins() {
	if c.pending {
		return
	}
	told := map[string]bool{}
	for i, r := range c.Roles {
		u := c.UserdataOf(r)
		for _, half := range []struct {
			is            bool
			key           string
			own           int
			problem, hint string
		}{
			{len(u.CA) > 0 && len(u.Servers) == 0, "ca", len(r.Userdata.CA), "userdata has the pin of a CA, and no servers", "add `servers:`"},
			{len(u.AgentURLs) > 0 && len(u.AgentSHA256) == 0, "agent_urls", len(r.Userdata.AgentURLs),
				"userdata has agent_urls without agent_sha256", "add the checksum, as sha256sum prints it"},
		} {
			at := spot{i, "userdata." + half.key}
			if half.own == 0 {
				at.role = noRole
			}
			if id := strconv.Itoa(at.role) + at.field; half.is && !told[id] {
				told[id] = true
				c.report(at, &Error{Problem: half.problem, Advice: half.hint})
			}
		}
	}
}

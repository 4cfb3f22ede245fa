package controlrepo

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"pulley/hieradata"
)

// Adoption is the report for the team that brings a repository: what works, what differs without a Puppet server, what
// to write, and what to do first. It has codes and parameters; Words renders them.
type Adoption struct {
	Works     []Part      `json:"works"`
	Different []RuleCount `json:"different"`
	Draft     *Draft      `json:"environment_file,omitempty"` // nil: the repository has one
	Steps     []Step      `json:"steps"`                      // in this order
}

// Part is a part of the repository that works without a change.
type Part struct {
	Code  string `json:"code"`
	Count int    `json:"count"`
}

// RuleCount counts the findings of a rule.
type RuleCount struct {
	Rule     Rule     `json:"rule"`
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Hint     string   `json:"hint,omitempty"`
	Own      int      `json:"own"`              // findings about the repository's own code
	Vendored int      `json:"vendored"`         // findings about modules of others
	Places   []string `json:"places,omitempty"` // of the own ones, at most maxPlaces: file:line, with the details of the finding
}

// Step is one thing to do.
type Step struct {
	Code  string   `json:"code"`
	Count int      `json:"count,omitempty"`
	Names []string `json:"names,omitempty"` // files, rules or extensions, as the code needs
}

// maxPlaces is the number of places that a RuleCount names.
const maxPlaces = 5

// survey makes the report from the files that were read and the final findings.
func (r *reading) survey(findings []Finding) *Adoption {
	a := &Adoption{Works: r.works()}
	if slices.ContainsFunc(findings, missesEnvironment) && len(r.codeDirectories()) == 0 {
		a.Draft = r.draft()
		findings = slices.DeleteFunc(slices.Clone(findings), missesEnvironment) // the draft stands for it
	}
	a.Different = countRules(findings)
	a.Steps = r.steps(a, findings)
	return a
}

func missesEnvironment(f Finding) bool { return f.Rule == EnvironmentMissing }

// works counts the parts of the repository.
func (r *reading) works() []Part {
	count := map[string]int{}
	for name := range r.modes {
		_, rest, inModule := r.layout.module(name)
		switch {
		case r.vendored(name):
		case r.isSite(name):
			count["site_manifests"]++
			count["node_declarations"] += len(nodeBlocks(name, r.lex(name)))
		case r.layout.autoloaded(name) != "" && (!inModule || strings.HasPrefix(rest, "manifests/")):
			count["manifests"]++
		case r.data[name] != nil:
			count["data_files"]++
		case inModule && strings.HasPrefix(rest, "lib/facter/"):
			count["custom_facts"]++
		case inModule && (strings.HasPrefix(rest, "lib/puppet/") || strings.HasPrefix(rest, "functions/") || strings.HasPrefix(rest, "types/")):
			count["functions_and_types"]++
		case inModule && (strings.HasPrefix(rest, "templates/") || strings.HasPrefix(rest, "files/")):
			count["files_and_templates"]++
		}
	}
	var parts []Part
	for _, code := range []string{"site_manifests", "node_declarations", "manifests", "data_files", "custom_facts", "functions_and_types", "files_and_templates"} {
		if count[code] > 0 {
			parts = append(parts, Part{code, count[code]})
		}
	}
	return parts
}

// countRules groups findings, errors first, in the order of the table of rules.
func countRules(findings []Finding) []RuleCount {
	counts := map[Rule]*RuleCount{}
	var order []*RuleCount
	for _, f := range findings {
		c := counts[f.Rule]
		if c == nil {
			t := ruleText(f.Rule)
			c = &RuleCount{Rule: f.Rule, Severity: f.Severity, Problem: t.Problem, Hint: t.Remedy}
			counts[f.Rule] = c
			order = append(order, c)
		}
		if f.Vendored {
			c.Vendored++
			continue
		}
		c.Own++
		if place := strings.TrimSuffix(f.place(), ": "); len(c.Places) < maxPlaces && place+f.detail != "" {
			if f.detail != "" {
				place = strings.TrimSpace(place + " (" + f.detail + ")")
			}
			c.Places = append(c.Places, place)
		}
	}
	at := func(rule Rule) int { return slices.IndexFunc(Rules, func(t RuleText) bool { return t.Rule == rule }) }
	slices.SortStableFunc(order, func(x, y *RuleCount) int {
		return cmp.Or(cmp.Compare(x.Severity, y.Severity), cmp.Compare(at(x.Rule), at(y.Rule)))
	})
	out := make([]RuleCount, 0, len(order))
	for _, c := range order {
		out = append(out, *c)
	}
	return out
}

// serverRules are the rules about code that needs a Puppet server or PuppetDB.
var serverRules = []Rule{ExportedResource, PuppetDBQuery, ServerVariable, FileServer, AgentCertificate, ModulepathOutside}

// steps returns what to do, in order.
func (r *reading) steps(a *Adoption, findings []Finding) []Step {
	steps := []Step{}
	own := func(rules ...Rule) (n int, names []string) {
		for _, c := range a.Different {
			if slices.Contains(rules, c.Rule) && c.Own > 0 {
				n, names = n+c.Own, append(names, string(c.Rule))
			}
		}
		return n, names
	}
	add := func(code string, n int, names []string) {
		if n > 0 {
			steps = append(steps, Step{code, n, names})
		}
	}
	var errs []string
	broken := 0
	for _, c := range a.Different {
		if c.Severity == Error {
			broken, errs = broken+c.Own, append(errs, string(c.Rule))
		}
	}
	add("errors", broken, errs)
	if all := r.codeDirectories(); len(all) > 0 {
		return []Step{{"code_directory", len(all), all[:min(len(all), maxNamed)]}}
	}
	var keys []string
	for _, f := range findings {
		if f.Rule == CommittedPrivateKey && !f.Vendored {
			keys = append(keys, f.File)
		}
	}
	add("private_keys", len(keys), keys[:min(len(keys), maxPlaces)])
	if _, has := r.modes["Puppetfile"]; has && !r.opts.Resolver {
		add("puppetfile", 1, nil)
	}
	if n, _ := own(Unclassified, UnsetVariable); n > 0 {
		_, variables := own(UnsetVariable)
		add("classification", n, variables)
	}
	n, _ := own(HieraMissing)
	add("hiera_missing", n, nil)
	n, _ = own(DataOutside)
	add("data_outside", n, nil)
	if a.Draft != nil {
		add("environment_file", 1, []string{a.Draft.File})
	} else if n, _ := own(TrustedUnsupplied); n > 0 {
		add("trusted", n, nil)
	}
	if keys, needed := r.eyaml().OnNodes(); needed {
		add("eyaml_keys", 1, keys)
	}
	n, names := own(serverRules...)
	add("server_features", n, names)
	add("publish", 1, nil)
	add("first_machine", 1, nil)
	return steps
}

// eyaml returns what the environment's hiera.yaml, and those of its modules, need to decrypt data.
func (r *reading) eyaml() hieradata.Eyaml {
	var all hieradata.Eyaml
	for name, data := range r.files {
		if path.Base(name) != "hiera.yaml" {
			continue
		}
		all = all.And(hieradata.ReadEyaml(data))
	}
	return all
}

package controlrepo

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/model"
	"pulley/internal/puppet"
)

// nodeBlock is a node declaration with the classes that its body includes.
type nodeBlock struct {
	file     string
	matchers []token
	classes  []string // without a leading ::
}

// nodeBlocks returns the node declarations of a manifest.
func nodeBlocks(file string, tokens []token) []nodeBlock {
	var blocks []nodeBlock
	for i := 0; i < len(tokens); i++ {
		if tokens[i].kind != word || tokens[i].text != "node" {
			continue
		}
		matchers, ok := declaration(tokens[i+1:])
		if !ok {
			continue
		}
		for !isSymbol(tokens, i, "{") {
			i++
		}
		begin, depth := i, 0
		for ; i < len(tokens); i++ {
			if isSymbol(tokens, i, "{") || isSymbol(tokens, i, "${") {
				depth++
			} else if isSymbol(tokens, i, "}") {
				if depth--; depth == 0 {
					break
				}
			}
		}
		blocks = append(blocks, nodeBlock{file, matchers, included(tokens[begin:min(i, len(tokens))])})
	}
	return blocks
}

// included returns the classes that code includes by name.
func included(tokens []token) (classes []string) {
	for _, t := range inclusions(tokens) {
		classes = append(classes, strings.TrimPrefix(t.text, "::"))
	}
	return classes
}

// classifiers are the words of a site manifest that give a node its classes, or resources that stand for them.
var classifiers = map[string]bool{"include": true, "contain": true, "require": true, "hiera_include": true, "create_resources": true}

// classifies reports whether a site manifest can give a node a class.
func classifies(tokens []token) bool {
	for i, t := range tokens {
		if t.kind == word && (classifiers[t.text] || t.text == "class" && isSymbol(tokens, i+1, "{")) && !followedBy(tokens, i, "=") {
			return true
		}
	}
	return false
}

// checkClassification warns of a repository whose classes come from elsewhere: no site manifest includes one, or Hiera
// reads variables that nothing here sets.
func (r *reading) checkClassification() {
	set, sites := map[string]bool{}, []string{}
	external := r.checkExternalNodes(set)
	r.checkAnswers()
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if !r.isSite(name) {
			continue
		}
		sites = append(sites, name)
		tokens := r.lex(name)
		for i, t := range tokens {
			if t.kind == variable && followedBy(tokens, i, "=") {
				set[strings.TrimPrefix(t.text, "::")] = true
			}
		}
	}
	if len(sites) > 0 && !external && !slices.ContainsFunc(sites, func(name string) bool { return classifies(r.lex(name)) }) {
		r.add(finding(Unclassified, sites[0], 0, 0, ""))
	}
	hiera := string(r.files["hiera.yaml"])
	for _, folder := range hieradata.OutsideFolders(r.files["hiera.yaml"]) {
		line := strings.Count(hiera[:max(0, strings.Index(hiera, folder))], "\n") + 1
		detail := folder
		if own := onServer.ReplaceAllString(folder, ""); own != folder {
			detail += ", which is " + own + " of the repository on a Puppet server"
		}
		r.add(finding(DataOutside, "hiera.yaml", line, 0, detail))
	}
	warned := map[string]bool{}
	for _, m := range topScope.FindAllStringSubmatchIndex(hiera, -1) {
		name := hiera[m[2]:m[3]]
		if set[name] || warned[name] || knownVariables[name] || r.ownFact(name) {
			continue
		}
		warned[name] = true
		r.add(finding(UnsetVariable, "hiera.yaml", strings.Count(hiera[:m[0]], "\n")+1, 0, name))
	}
}

// checkExternalNodes checks the answers of an external node classifier, and adds the variables that they set. It reports
// whether there are any.
func (r *reading) checkExternalNodes(set map[string]bool) (any bool) {
	for name, data := range r.files {
		if !isExternalNode(name) {
			continue
		}
		any = true
		n, err := puppet.ParseExternalNode(data)
		if err != nil {
			r.add(finding(ExternalNodeFile, name, 0, 0, err.Error()))
			continue
		}
		var answer struct {
			Parameters map[string]yaml.Node `yaml:"parameters"`
		}
		if yaml.Unmarshal(n.Text, &answer) == nil {
			for parameter := range answer.Parameters {
				set[parameter] = true
			}
		}
	}
	return any
}

// checkAnswers warns of the nodes of environment files that have no answer in external_nodes. An answer may be a link.
func (r *reading) checkAnswers() {
	entries, err := fs.ReadDir(r.repo, puppet.ExternalNodes)
	if err != nil {
		return // there is no such folder
	}
	answered, any := map[string]bool{}, false
	for _, e := range entries {
		name := path.Join(puppet.ExternalNodes, e.Name())
		if r.opts.Ignore != nil && r.opts.Ignore(name, e.IsDir()) {
			continue
		}
		any = any || !e.IsDir()
		if node, ok := strings.CutSuffix(e.Name(), ".yaml"); ok && !e.IsDir() {
			answered[node] = true
			if n, err := model.ParseNode(node); err == nil {
				n.Stack = "" // the file does not say which stacks there are
				answered[n.Hostname()] = true
			}
		}
	}
	if !any || answered["default"] {
		return
	}
	for file, e := range r.environments {
		var lacking []string
		more := 0
		for name := range certnames(e) {
			switch {
			case answered[name]:
			case len(lacking) < maxNamed:
				lacking = append(lacking, name)
			default:
				more++
			}
		}
		if len(lacking) == 0 {
			continue
		}
		detail := strings.Join(lacking, ", ")
		if more > 0 {
			detail += fmt.Sprintf(" and %d more", more)
		}
		r.add(finding(ExternalNodeMissing, file, 0, 0, detail))
	}
}

// maxNamed limits the nodes that a finding names.
const maxNamed = 5

// topScope matches a variable of the top scope in hiera.yaml: %{role}, %{::role}.
var topScope = regexp.MustCompile(`%\{(?:::)?([a-z_]\w*)\}`)

// ownFact reports whether a module of the repository has a file for the fact.
func (r *reading) ownFact(name string) bool {
	for file := range r.modes {
		if strings.Contains(file, "facter/") && strings.TrimSuffix(path.Base(file), path.Ext(file)) == name {
			return true
		}
	}
	return false
}

// knownVariables are variables that Puppet sets: its own, and the facts of Facter with a plain name, also legacy ones.
var knownVariables = func() map[string]bool {
	known := map[string]bool{}
	for _, name := range strings.Fields(`environment clientcert clientversion clientnoop module_name calling_module calling_class calling_class_path
		title name facts trusted server_facts aio_agent_version architecture augeasversion bios_vendor domain filesystems fqdn gid hardwareisa
		hardwaremodel hostname id interfaces ipaddress ipaddress6 is_virtual kernel kernelmajversion kernelrelease kernelversion
		lsbdistcodename lsbdistdescription lsbdistid lsbdistrelease lsbmajdistrelease lsbminordistrelease lsbrelease macaddress manufacturer
		memorysize netmask network operatingsystem operatingsystemmajrelease operatingsystemrelease osfamily os path physicalprocessorcount
		processorcount processors productname puppetversion rubyplatform rubysitedir rubyversion selinux serialnumber system_uptime
		timezone uptime uptime_days uptime_hours uptime_seconds uuid virtual networking memory disks mountpoints partitions identity
		is_pe pe_server_version pe_version`) {
		known[name] = true
	}
	return known
}()

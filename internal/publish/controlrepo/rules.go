package controlrepo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Rule is the code of a rule. Repositories silence rules by this name.
type Rule string

// The rules. Their severities and sentences are in the table of rules.
const (
	ManifestSyntax      Rule = "manifest_syntax"
	UnusedSyntax        Rule = "unused_syntax"
	ParserWarning       Rule = "parser_warning"
	PuppetFailed        Rule = "puppet_failed"
	NotChecked          Rule = "not_checked"
	DataSyntax          Rule = "data_syntax"
	DataDate            Rule = "data_date"
	Interpolation       Rule = "interpolation"
	InterpolationFails  Rule = "interpolation_fails"
	InterpolationOdd    Rule = "interpolation_odd"
	DataMapping         Rule = "data_mapping"
	ByteOrderMark       Rule = "byte_order_mark"
	LookupOptions       Rule = "lookup_options"
	LookupFails         Rule = "lookup_fails"
	LegacyFact          Rule = "legacy_fact"
	ClassMissing        Rule = "class_missing"
	TypeMissing         Rule = "type_missing"
	FunctionMissing     Rule = "function_missing"
	FileMissing         Rule = "file_missing"
	DeclaredTwice       Rule = "declared_twice"
	LFSPointer          Rule = "lfs_pointer"
	HookStart           Rule = "hook_start"
	HookInterpreter     Rule = "hook_interpreter"
	EnvironmentConf     Rule = "environment_conf"
	EnvironmentConfOdd  Rule = "environment_conf_odd"
	CodeDirectory       Rule = "code_directory"
	DuplicateKey        Rule = "duplicate_key"
	HieraConfig         Rule = "hiera_config"
	HieraVersion3       Rule = "hiera_version_3"
	HieraVersion4       Rule = "hiera_version_4"
	HieraMissing        Rule = "hiera_missing"
	ManifestsMissing    Rule = "manifests_missing"
	NodesMissing        Rule = "nodes_missing"
	RoleUnmatched       Rule = "role_unmatched"
	EnvironmentMissing  Rule = "environment_missing"
	EnvironmentName     Rule = "environment_name"
	EnvironmentFile     Rule = "environment_file"
	OverlayEnvironment  Rule = "overlay_environment"
	CloudName           Rule = "cloud_name"
	Settings            Rule = "settings"
	SilenceUnused       Rule = "silence_unused"
	LiveDataUnused      Rule = "live_data_unused"
	LiveDataTwice       Rule = "live_data_twice"
	NotExecutable       Rule = "not_executable"
	PrivateKey          Rule = "private_key"
	CommittedPrivateKey Rule = "committed_private_key"
	ExportedResource    Rule = "exported_resource"
	PuppetDBQuery       Rule = "puppetdb_query"
	ServerVariable      Rule = "server_variable"
	FileServer          Rule = "file_server"
	TrustedUnsupplied   Rule = "trusted_unsupplied"
	TrustedExternal     Rule = "trusted_external"
	PuppetSetting       Rule = "puppet_setting"
	ModulepathOutside   Rule = "modulepath_outside"
	UnusedEnvironment   Rule = "environment_variable"
	AgentCertificate    Rule = "agent_certificate"
	RemoteFilebucket    Rule = "remote_filebucket"
	AgentService        Rule = "agent_service"
	PuppetStarted       Rule = "puppet_started"
	ExternalNodeFile    Rule = "external_node"
	ExternalNodeMissing Rule = "external_node_missing"
	Unclassified        Rule = "unclassified"
	UnsetVariable       Rule = "unset_variable"
	DataOutside         Rule = "data_outside"
	EyamlKeys           Rule = "eyaml_keys"
	EyamlUnread         Rule = "eyaml_unread"
	Refused             Rule = "refused"
	OddEntry            Rule = "odd_entry"
)

// Severity is the severity of a finding. Errors forbid publishing.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // every node that reads the file fails, or publish must not store it
	Warning Severity = "warning" // Puppet accepts it, but it probably does not do what was meant
)

// RuleText describes a rule.
type RuleText struct {
	Rule     Rule
	Severity Severity
	Problem  string // a finding adds its details
	Remedy   string
}

// Rules is the table of rules. docs/validation.md shows the same table. Severities follow what Puppet 7.23 was seen to
// do: an error is only what ends the run of a node that reads the file, or what must not be stored in etcd.
var Rules = []RuleText{
	{ManifestSyntax, Error, "Puppet cannot parse a manifest that nodes read", "correct the manifest: `puppet parser validate` reports the same"},
	{DataSyntax, Error, "Hiera cannot parse a data file", "correct the file"},
	{LookupOptions, Error, "the lookups that read the file fail because of lookup_options", "write a mapping of keys, or of patterns that begin with ^, to their options: {'ntp::servers': {merge: unique}}"},
	{EnvironmentConf, Error, "Puppet cannot read environment.conf, and every run fails", "correct the line: it is NAME = VALUE, or a comment that begins with #; $NAME is a setting of Puppet"},
	{DeclaredTwice, Error, "every run fails: site manifests declare the same name twice, and Puppet reads all files of their folder", "keep one of them, or name the file to read as manifest in environment.conf"},
	{HookStart, Error, "nodes cannot start the hook", "begin it with #! and the path of its interpreter, as in #!/bin/sh, with lines that end as on Unix"},
	{DataDate, Error, "Puppet refuses to read a data file with a date", "write the date in quotes"},
	{Interpolation, Error, "every lookup of every node fails", "write %{VARIABLE}"},
	{HieraConfig, Error, "Puppet cannot use this hiera.yaml", "correct the file, or add the module that has the function that it names: `--puppetfile ignore` publishes only the modules in the folder"},
	{PrivateKey, Error, "git does not track this private key, and every node and every reader of etcd could read it in a release", "keep it outside of the repository, or name it in .pulleyignore"},
	{Settings, Error, "nodes would refuse the release because of its pulley.yaml", "correct the file: its settings are live_data and silence"},
	{LiveDataUnused, Error, "live_data is hierarchy, but hiera.yaml has no place for live data", `add a level to hiera.yaml with paths such as "%{facts.pulley.data}/node.yaml"`},
	{EnvironmentFile, Error, "the file is not a valid environment or cloud", "correct the file: docs/environments.md lists its keys"},
	{ExternalNodeFile, Error, "nodes would refuse the release because of their file in external_nodes", "write classes and parameters as an external node classifier prints them: docs/classification.md"},
	{TrustedExternal, Error, "trusted.external is read, and without trusted_external_command it is empty on every node", "write the command into puppet: {settings: {trusted_external_command: PATH}} of environments/ENVIRONMENT.yaml"},
	{NotExecutable, Error, "the hook is not executable, and nodes would skip it", "run `chmod +x` on it"},
	{PuppetFailed, Error, "Puppet could not judge the files", "repair or install Puppet, or do without it: --no-puppet"},
	{Refused, Error, "publish refuses the folder", "change it, or leave it out by a line in .pulleyignore"},
	{UnusedSyntax, Warning, "the file does not parse; no code or data of this repository names it, or its module is vendored", "correct or delete the file"},
	{ParserWarning, Warning, "Puppet warns about a manifest", "change the manifest as Puppet advises"},
	{NotChecked, Warning, "the file is not checked", "divide it, if it is too large"},
	{InterpolationFails, Warning, "the runs of the nodes that look up the value fail", "write %{VARIABLE} or %{lookup('KEY')}; alias must be the whole value"},
	{InterpolationOdd, Warning, "Puppet does not interpolate the text as it is meant", "write %{VARIABLE} or %{lookup('KEY')}; and for a percent sign before a brace: %{literal('%')}{"},
	{LookupFails, Warning, "the runs of the nodes that look up the key fail", "correct the value: Puppet takes texts, numbers, booleans, null, lists and mappings, and options as https://www.puppet.com/docs/puppet/8/hiera_merging has them"},
	{DataMapping, Warning, "the data file is not a mapping: Puppet 7 ignores it, and Puppet 8 fails", "write a mapping of keys to values, with a blank behind each colon, or delete the file"},
	{ByteOrderMark, Warning, "the file begins with a byte order mark, and Puppet reads its first key at most", "save the file as UTF-8 without a byte order mark"},
	{HookInterpreter, Warning, "nodes without the interpreter of the hook cannot start it", "install it on the nodes before the release, or write the hook for /bin/sh"},
	{EnvironmentConfOdd, Warning, "Puppet does not read environment.conf as it looks", "correct the line: its settings are modulepath, manifest, config_version and environment_timeout"},
	{ClassMissing, Warning, "no module has this class: the nodes that include it fail", "add the manifest, or correct the name; the class a::b::c is in MODULEPATH/a/manifests/b/c.pp"},
	{TypeMissing, Warning, "no module has this resource type: the nodes that evaluate the code fail", "add the module that has it, or correct the name"},
	{FunctionMissing, Warning, "neither Puppet nor a module has this function: the nodes that call it fail", "add the module that has it, or call another: Puppet 4 dropped import, and stdlib 9 many functions"},
	{FileMissing, Warning, "the module has no such file: the nodes that read it fail", "add the file, or correct the name: puppet:///modules/MODULE/FILE is MODULE/files/FILE, and template('MODULE/FILE') is MODULE/templates/FILE"},
	{LegacyFact, Warning, "machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there", "read the structured fact, as $facts['os']['family'], or set puppet: {settings: {include_legacy_facts: 'true'}} in environments/ENVIRONMENT.yaml"},
	{LFSPointer, Warning, "the file is a pointer of Git LFS, and nodes get the pointer instead of the file", "run `git lfs pull` in the work tree and publish that; r10k and --git-ref do not fetch such files"},
	{CodeDirectory, Warning, "the folder holds directory environments of Puppet, and each of them is a control repository", "name one of them"},
	{DuplicateKey, Warning, "the mapping contains a key twice, and Puppet uses the last value", "delete one of them"},
	{HieraVersion3, Warning, "Puppet ignores a hiera.yaml of version 3 in an environment or a module", "convert it to version 5"},
	{HieraVersion4, Warning, "a hiera.yaml of version 4 is deprecated, and Puppet 8 does not read it", "convert it to version 5"},
	{HieraMissing, Warning, "there is no hiera.yaml, and Puppet reads only data/common.yaml", "copy the file of the Puppet server (`puppet config print hiera_config`) and convert it to version 5; `pulley init` in an empty folder writes an example"},
	{ManifestsMissing, Warning, "there is no site manifest, and Puppet applies nothing", "add manifests/site.pp, or set manifest in environment.conf"},
	{NodesMissing, Warning, "there are no node declarations, and all nodes get the same resources unless data or facts select classes", `declare nodes, as in: node /^controller\d+/ { … }`},
	{RoleUnmatched, Warning, "no node declaration matches a node of the environment", "add a declaration to the site manifest"},
	{EnvironmentMissing, Warning, "there is no environment", "list the roles in environments/ENVIRONMENT.yaml"},
	{EnvironmentName, Warning, "data or code is for an environment that the repository does not have: $environment is the name of the environment file", "name the environment file, or the data and the code, alike: docs/validation.md"},
	{OverlayEnvironment, Warning, "an overlay replaces the environment file: roles, node settings and trusted extensions are those of the overlay", "keep the file in one of both sources"},
	{CloudName, Warning, "`--cloud` does not find a file that ends with .yml", "rename it to .yaml"},
	{LiveDataTwice, Warning, "hiera.yaml has a place for live data, but live_data is above: Puppet would look it up twice", "write live_data: hierarchy into pulley.yaml"},
	{CommittedPrivateKey, Warning, "the private key is in git or in a vendored module: every node and every reader of etcd can read it in a release", "replace the key, and name it in .pulleyignore"},
	{ExportedResource, Warning, "exported resources need PuppetDB: Puppet warns and ignores them", "build the resources from pulley::hosts, the nodes that this node sees: docs/hosts.md"},
	{PuppetDBQuery, Warning, "puppetdb_query needs PuppetDB: the nodes that call it fail", "use the host list, or put the result into Hiera"},
	{ServerVariable, Warning, "the variable describes a Puppet server: without one it describes the node, or is undefined", "use $facts or $trusted"},
	{FileServer, Warning, "the source is on a file server: the nodes that declare this file fail", "put the file into a module and use puppet:///modules/MODULE/FILE"},
	{TrustedUnsupplied, Warning, "the code reads a trusted extension that an environment file does not supply to every role", "write it below trusted: in environments/ENVIRONMENT.yaml"},
	{PuppetSetting, Warning, "puppet.conf has a setting that changes catalogs, and that the runs of an environment do not have", "write it into puppet: {settings: {…}} of environments/ENVIRONMENT.yaml; `pulley-agent takeover look` has the remedy for settings that Pulley owns"},
	{ModulepathOutside, Warning, "modulepath names a folder outside of the repository: the machine's own modules reach its runs", "put the modules into the repository"},
	{UnusedEnvironment, Warning, "Puppet does not replace $environment in this setting, and finds no such folder", "write the path relative to environment.conf"},
	{AgentCertificate, Warning, "the setting names a file of puppet agent: here it is the node's own, whose key opens etcd", "use another certificate, or set puppet.ssldir in agent.yaml to the ssldir of the former agent"},
	{Unclassified, Warning, "no site manifest includes a class: without an external classifier, nodes apply only what it declares itself", "include classes there, or give them in external_nodes/: docs/classification.md"},
	{ExternalNodeMissing, Warning, "nodes of the environment have no answer in external_nodes, and their runs fail", "add external_nodes/NODE.yaml for each or a default.yaml, or publish with --external-nodes: docs/classification.md"},
	{UnsetVariable, Warning, "hiera.yaml reads a variable that no site manifest and no fact of a module sets: without an external classifier it is empty", "set it in the site manifest, by a parameter in external_nodes/, or by an external fact of the machines"},
	{DataOutside, Warning, "hiera.yaml reads a folder outside of the repository: nodes find only what they have there themselves", "name a folder of the repository, and join a second source with publish --overlay"},
	{EyamlKeys, Warning, "nodes need hiera-eyaml and the keys that hiera.yaml names", "put the keys on the nodes that need them, readable by root only: docs/eyaml.md"},
	{EyamlUnread, Warning, "Hiera does not decrypt this value: no level of hiera.yaml that reads the file uses eyaml_lookup_key", "set lookup_key: eyaml_lookup_key for the level"},
	{RemoteFilebucket, Warning, "the filebucket is on a server: here it is the node's own, and it keeps no file with secrets", "remove path => false, or backup => false where the bucket is used"},
	{PuppetStarted, Warning, "the code starts Puppet, for example by cron: it and Pulley both change the node", "remove it from the code: cron starts pulley-agent"},
	{AgentService, Warning, "the code manages the service of puppet agent: a running agent and Pulley both change the node. After a takeover no run changes the service, and it counts as pending", "remove the service from the code when all nodes are taken over"},
	{SilenceUnused, Warning, "what silences a rule has no effect", "correct or delete it: docs/validation.md lists the rules"},
	{OddEntry, Warning, "the link or name is published, but may not work as it is meant", "rename it, or replace the link by a file"},
}

// ruleText returns the description of a rule.
func ruleText(rule Rule) RuleText {
	i := slices.IndexFunc(Rules, func(t RuleText) bool { return t.Rule == rule })
	if i < 0 {
		return RuleText{Rule: rule, Severity: Error}
	}
	return Rules[i]
}

// Finding is one problem in a control repository.
type Finding struct {
	File     string   `json:"file,omitempty"`   // relative to the repository; "" for the repository itself
	Line     int      `json:"line,omitempty"`   // from 1; 0 if unknown
	Column   int      `json:"column,omitempty"` // from 1, in characters; 0 if unknown
	Rule     Rule     `json:"rule"`
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`            // sentence of the rule, with details
	Hint     string   `json:"hint,omitempty"`     // remedy
	Vendored bool     `json:"vendored,omitempty"` // in a module of somebody else: never an error

	detail string
}

// finding makes a finding of a rule. The detail, which may be "", follows the sentence of the rule.
func finding(rule Rule, file string, line, column int, detail string) Finding {
	t := ruleText(rule)
	f := Finding{File: file, Line: line, Column: column, Rule: rule, Severity: t.Severity, Problem: t.Problem, Hint: t.Remedy, detail: detail}
	if detail != "" {
		f.Problem += ": " + detail
	}
	return f
}

// findingAt makes a finding about a position of a text, in bytes.
func findingAt(rule Rule, file, src string, at int, detail string) Finding {
	line := src[strings.LastIndexByte(src[:at], '\n')+1 : at]
	return finding(rule, file, strings.Count(src[:at], "\n")+1, utf8.RuneCountInString(line)+1, detail)
}

// as returns the finding under another rule.
func (f Finding) as(rule Rule) Finding { return finding(rule, f.File, f.Line, f.Column, f.detail) }

// inVendored returns a finding about a module of somebody else, which is never an error.
func (f Finding) inVendored() Finding {
	switch {
	case f.Rule == PrivateKey:
		f = f.as(CommittedPrivateKey)
	case f.Severity == Error:
		f = f.unused()
	}
	f.Vendored = true
	return f
}

// unused returns the finding about a file that no node reads.
func (f Finding) unused() Finding {
	if f.Rule == Interpolation {
		return f.as(InterpolationFails)
	}
	return f.as(UnusedSyntax)
}

// String formats the finding like a compiler: file:line:column: severity: problem [rule].
func (f Finding) String() string {
	return fmt.Sprintf("%s%s: %s [%s]", f.place(), f.Severity, f.Problem, f.Rule)
}

func (f Finding) place() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, ":%d", f.Column)
			}
		}
		b.WriteString(": ")
	}
	return b.String()
}

// Report is the result of Validate.
type Report struct {
	Findings []Finding `json:"findings"` // sorted by file and place
	Files    int       `json:"files"`    // number of files read
	Silenced int       `json:"silenced"` // number of findings that the repository silences
	Adoption *Adoption `json:"adoption,omitempty"`
}

// Errors counts the findings that forbid publishing.
func (r Report) Errors() int { return r.count(Error) }

// Warnings counts the findings that do not forbid publishing.
func (r Report) Warnings() int { return r.count(Warning) }

func (r Report) count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Refusals returns the findings for an error of publish. Each error that errors.Join combined is a finding of its own.
func Refusals(err error) []Finding {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var all []Finding
		for _, one := range several.Unwrap() {
			all = append(all, Refusals(one)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	problem, remedy, _ := strings.Cut(err.Error(), "\n")
	f := finding(Refused, "", 0, 0, problem)
	f.Hint = cmp.Or(remedy, f.Hint)
	return []Finding{f}
}

// Odd returns the finding for a link or name that a release carries, and that may not work as it is meant.
func Odd(file, detail string) Finding { return finding(OddEntry, file, 0, 0, detail) }

// Replaced returns the findings for files that an overlay replaces: for environment files.
func Replaced(source string, files []string) []Finding {
	var all []Finding
	for _, name := range files {
		if IsEnvironment(name) {
			all = append(all, finding(OverlayEnvironment, name, 0, 0, source))
		}
	}
	return all
}

// Strict returns the report with warnings as errors, except those about vendored modules.
func (r Report) Strict() Report {
	r.Findings = slices.Clone(r.Findings)
	for i := range r.Findings {
		if !r.Findings[i].Vendored {
			r.Findings[i].Severity = Error
		}
	}
	return r
}

// GitHub formats the findings as annotations of a GitHub workflow, errors first, because GitHub shows ten of each
// severity. Its format:
// https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#setting-an-error-message
func (r Report) GitHub() string {
	var b strings.Builder
	all := slices.Clone(r.Findings)
	slices.SortStableFunc(all, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Severity, y.Severity), cmp.Compare(vendoredLast(x), vendoredLast(y)))
	})
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	message := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	for _, f := range all {
		fmt.Fprintf(&b, "::%s title=%s", f.Severity, property.Replace(string(f.Rule)))
		if f.File != "" {
			fmt.Fprintf(&b, ",file=%s", property.Replace(f.File))
		}
		if f.Line > 0 {
			fmt.Fprintf(&b, ",line=%d", f.Line)
		}
		if f.Column > 0 {
			fmt.Fprintf(&b, ",col=%d", f.Column)
		}
		fmt.Fprintf(&b, "::%s\n", message.Replace(f.Problem+"\n"+f.Hint))
	}
	return b.String()
}

func vendoredLast(f Finding) int {
	if f.Vendored {
		return 1
	}
	return 0
}

// sortFindings sorts by place and removes duplicates.
func sortFindings(all []Finding) []Finding {
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Hint, b.Hint))
	})
	return slices.Compact(all)
}

package settings

import (
	"slices"
	"strings"

	"pulley/internal/model"
)

// AgentFacts are the folders in which puppet agent itself looks for facts.
const AgentFacts = "$vardir/lib/facter:$vardir/facts"

// FactPath returns Puppet's setting factpath: the folders of a run, and those in puppet.settings.
func FactPath(own string, given map[string]string) string {
	if more := given["factpath"]; more != "" {
		return own + ":" + more
	}
	return own
}

// CatalogSettings are the settings that change catalogs, or how a run applies them, and that puppet.settings may set; with the default of
// Puppet 7 and 8 where both have the same one. Those of Puppet 8 only are among them.
var CatalogSettings = map[string]string{
	"allow_pson_serialization": "", "data_binding_terminus": "hiera", "default_file_terminus": "rest", "default_manifest": "./manifests", "default_schedules": "true",
	"digest_algorithm": "sha256", "disable_i18n": "true", "disable_per_environment_manifest": "false", "disable_warnings": "[]", "environment_data_provider": "",
	"exclude_unchanged_resources": "", "factpath": "", "filetimeout": "15s", "freeze_main": "false", "http_proxy_host": "none", "http_proxy_password": "", "http_proxy_port": "3128",
	"http_proxy_user": "none", "ignoremissingtypes": "false", "ignoreschedules": "false", "include_legacy_facts": "", "location_trusted": "false", "max_errors": "10", "maximum_uid": "4294967290",
	"no_proxy": "localhost, 127.0.0.1", "postrun_command": "", "preprocess_deferred": "", "prerun_command": "", "priority": "", "rich_data": "true", "show_diff": "false", "statettl": "32d", "strict": "",
	"strict_variables": "", "supported_checksum_types": "", "trusted_external_command": "", "trusted_oid_mapping_file": "",
}

// ownedSettings are the settings of Puppet that Pulley sets itself, or that would make a run something else than a run.
var ownedSettings = []string{
	"agent_catalog_run_lockfile", "agent_disabled_lockfile", "basemodulepath", "ca_port", "ca_server", "cadir", "catalog_cache_terminus", "catalog_terminus",
	"certdir", "certname", "classfile", "client_datadir", "clientbucketdir", "clientyamldir", "code", "codedir", "color", "confdir", "config", "config_file_name", "config_version", "configprint", "csr_attributes", "csrdir",
	"daemonize", "detailed_exitcodes", "diff", "diff_args", "dns_alt_names", "environment", "environmentpath", "external_nodes", "facts_terminus", "genconfig", "genmanifest", "hiera_config", "hostcert", "hostcrl",
	"hostcsr", "hostprivkey", "hostpubkey", "lastrunfile", "lastrunreport", "libdir", "localcacert", "log_level", "logdest", "logdir", "manage_internal_file_permissions", "manifest",
	"maxwaitforcert", "maxwaitforlock", "modulepath", "node_name", "node_name_fact", "node_name_value", "node_terminus", "noop", "onetime", "passfile", "pidfile", "plugindest",
	"pluginfactdest", "privatedir", "privatekeydir", "publicdir", "publickeydir", "report", "reports", "reporturl", "requestdir", "resourcefile", "route_file", "rundir", "runinterval", "server",
	"server_list", "serverport", "masterport", "signeddir", "skip_tags", "splay", "splaylimit", "ssldir", "statedir", "statefile", "storeconfigs", "storeconfigs_backend", "strict_environment_mode", "tags", "transactionstorefile",
	"use_cached_catalog", "usecacheonfailure", "vardir", "vendormoduledir", "versioned_environment_dirs", "waitforcert", "waitforlock", "write_catalog_summary", "yamldir",
}

// OwnedPattern matches a setting that Pulley sets itself, for the schema of the environment file.
var OwnedPattern = "^(" + strings.Join(ownedSettings, "|") + ")$"

// remedies are what to write in the place of a setting that Pulley owns.
var remedies = map[string]string{
	"server": "the servers are in servers", "server_list": "the servers are in servers", "serverport": "the servers are in servers", "masterport": "the servers are in servers",
	"ca_server": "the CA is in ca", "ca_port": "the CA is in ca",
	"environment": "the environment is that of the file, or that of the release: pulley publish --puppet-environment NAME",
	"runinterval": "write the schedule of the agent into userdata.schedule", "splay": "write the schedule of the agent into userdata.schedule", "splaylimit": "write the schedule of the agent into userdata.schedule",
	"csr_attributes": "write extensions into trusted", "config_version": "write it into environment.conf of the release",
	"hiera_config":   "live data is Puppet's global layer: write the levels of this file above the others in hiera.yaml of the release",
	"external_nodes": "publish the answers of the classifier: pulley publish --external-nodes COMMAND", "node_terminus": "publish the answers of the classifier: pulley publish --external-nodes COMMAND",
	"manifest": "write it into environment.conf of the release", "modulepath": "write it into environment.conf of the release", "basemodulepath": "put the modules into the release, and write modulepath into its environment.conf",
	"libdir": "put types, providers and functions into a module of the release", "pluginfactdest": "put external facts into facts.d of a module of the release",
	"reports": "write the processors into puppet.reports", "reporturl": "write it into puppet.reporturl",
	"storeconfigs": "list the nodes that a role sees in sees", "storeconfigs_backend": "list the nodes that a role sees in sees",
	"noop": "give --noop to the command that starts the run, or noop to resources", "tags": "give --tags to the command that starts the run", "skip_tags": "give --skip-tags to the command that starts the run",
	"certname": "the certname is that of the node", "node_name_fact": "the certname is that of the node", "node_name_value": "the certname is that of the node",
}

// SettingFlaw refuses a setting that Pulley owns; nil for others.
func SettingFlaw(name string) *model.Error {
	if !slices.Contains(ownedSettings, name) {
		return nil
	}
	if advice := remedies[name]; advice != "" {
		return &model.Error{Problem: "Pulley sets it itself", Advice: advice}
	}
	return &model.Error{Problem: "Pulley sets it itself", Advice: "leave it out"}
}

// otherSettings are the settings of Puppet 7.23 (`puppet config print all`) that are neither in CatalogSettings nor in ownedSettings, and
// have a value.
var otherSettings = []string{
	"allow_duplicate_certs", "always_retry_plugins", "autoflush", "autosign", "bucketdir", "ca_name", "ca_ttl",
	"cacert", "cacrl", "cakey", "capub", "cert_inventory", "certificate_revocation", "ciphers", "deviceconfdir", "deviceconfig",
	"devicedir", "document_all", "environment_timeout", "evaltrace", "fact_name_length_soft_limit", "fact_value_length_soft_limit", "fileserverconfig",
	"graph", "graphdir", "group", "http_connect_timeout", "http_debug", "http_extra_headers", "http_keepalive_timeout",
	"http_read_timeout", "http_user_agent", "ignore_plugin_errors", "key_type", "keylength", "ldapattrs", "ldapbase", "ldapclassattrs", "ldapparentattr",
	"ldappassword", "ldapport", "ldapserver", "ldapssl", "ldapstackedattrs", "ldapstring", "ldaptls", "ldapuser", "localedest", "localesource",
	"max_deprecations", "max_warnings", "merge_dependency_warnings", "mkusers", "module_repository", "module_working_dir", "name",
	"named_curve", "number_of_facts_soft_limit", "path", "payload_soft_limit", "pluginfactsource", "pluginsignore", "pluginsource",
	"pluginsync", "preferred_serialization_format", "preview_outputdir", "profile", "puppet_trace", "puppetdlog", "report_include_system_store",
	"report_port", "report_server", "reportdir", "resubmit_facts", "runtimeout", "serial", "server_datadir", "settings_catalog",
	"ssl_client_header", "ssl_client_verify_header", "ssl_lockfile", "static_catalogs", "summarize", "syslogfacility",
	"tasks", "top_level_facts_soft_limit", "trace", "use_last_environment", "use_srv_records", "user",
}

// Known reports whether Puppet 7 or 8 has a setting of this name with a value, or sets run_mode: another $name fails each run.
func Known(name string) bool {
	_, catalog := CatalogSettings[name]
	if name == "logdest" || name == "catalog_cache_terminus" { // without a value of their own
		return false
	}
	return catalog || name == "run_mode" || slices.Contains(ownedSettings, name) || slices.Contains(otherSettings, name)
}

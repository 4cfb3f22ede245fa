package source

import "testing"

// A Puppetfile has a hundred modules: the one that fails must stand in the first line, with its cause.
func TestFailureNamesModuleAndCause(t *testing.T) {
	p := parsePuppetfile("mod 'motd', :git => 'file:///r/motd'\nmod 'ntp', :git => 'file:///r/ntp', :branch => 'vanished'\n" +
		"mod 'x',\n  :git => 'ssh://git@127.0.0.1:1/x.git'\nmod 'puppetlabs/nonesuch', '1.0.0'\nmod 'puppetlabs-ntp_more', '1.0.0'\n")
	for said, want := range map[string][2]string{
		// r10k 3.15
		"ERROR\t -> Error during concurrent deploy of a module: Command exited with non-zero exit code:\nCommand: git clone --mirror ssh://git@127.0.0.1:1/x.git /h/x\n" +
			"Stderr:\nCloning into bare repository '/h/ssh---127.0.0.1-1-x.git'...\nssh: connect to host 127.0.0.1 port 1: Connection refused\n" +
			"fatal: Could not read from remote repository.\nPlease make sure you have the correct access rights\nand the repository exists.\nExit code: 128": {"x", "ssh: connect to host 127.0.0.1 port 1: Connection refused"},
		"INFO\t -> Deploying module to modules/motd\nERROR\t -> Unable to manage Puppetfile content 'ntp': Could not resolve desired ref 'vanished' and no default provided": {
			"ntp", "Could not resolve desired ref 'vanished' and no default provided"},
		"\x1b[31mERROR\t -> Unable to connect to https://forgeapi.puppet.com (for request /v3/modules/puppetlabs-nonesuch): Failed to open TCP connection\x1b[0m": {
			"nonesuch", "Unable to connect to https://forgeapi.puppet.com (for request /v3/modules/puppetlabs-nonesuch): Failed to open TCP connection"},
		"ERROR\t -> The module puppetlabs-nonesuch does not exist on https://forgeapi.puppet.com.": {"nonesuch", "The module puppetlabs-nonesuch does not exist on https://forgeapi.puppet.com."},
		"ERROR\t -> Failed to evaluate Puppetfile\nOriginal exception:\nPuppetfile:1: syntax error, unexpected ':'\nmod 'ntp' :git\n          ^": {
			"", "Puppetfile:1: syntax error, unexpected ':'"},
		"WARN\t -> \"basedir\" is deprecated.\nERROR\t -> Puppetfile cannot manage content 'ntp' outside of containing environment: /x": {
			"ntp", "Puppetfile cannot manage content 'ntp' outside of containing environment: /x"},
		// g10k 0.9
		"2026/11/23 00:01:30 Executing git clone --mirror file:///r/motd took 0.03044s\nWARN: git repository file:///r/ntp does not exist or is unreachable at this moment! " +
			"Error: exit status 128 Cloning into bare repository 'ntp'...\nfatal: '/r/ntp' does not appear to be a git repository\nfatal: Could not read from remote repository.": {
			"ntp", "'/r/ntp' does not appear to be a git repository"},
		"2026/11/23 00:01:31 Executing git archive main took 0.00027s\nFailed to resolve git module 'ntp' with repository file:///r/ntp and branch/reference 'vanished'": {
			"ntp", "Failed to resolve git module 'ntp' with repository file:///r/ntp and branch/reference 'vanished'"},
		"queryForgeAPI(): Error while issuing the HTTP request to https://forgeapi.puppet.com/v3/modules/puppetlabs-nonesuch?x: no such host": {
			"nonesuch", "queryForgeAPI(): Error while issuing the HTTP request to https://forgeapi.puppet.com/v3/modules/puppetlabs-nonesuch?x: no such host"},
		"segmentation fault": {"", "segmentation fault"},
		"INFO\t -> x":        {"", ""},
	} {
		if module, cause := p.blame(said); module != want[0] || cause != want[1] {
			t.Errorf("%s\n: module %q, cause %q, want %q", said, module, cause, want)
		}
	}
}

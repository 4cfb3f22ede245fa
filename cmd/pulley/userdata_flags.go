package main

import (
	"github.com/spf13/pflag"

	"pulley/userdata"
)

// firstBootFlags are what the command line says of first boots, whichever machine it is for.
type firstBootFlags struct {
	*options
	told  userdata.Options
	files keyFiles

	agents, checksums []string
	pre, post, steps  []string

	unsigned bool // new machines need not check signatures: it was said
}

func (u *firstBootFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&u.told.Servers, "servers", nil, "https `URLs` of pulley serve, with commas, where the machine joins [PULLEY_SERVERS]")
	f.StringSliceVar(&u.told.CA, "ca", nil, "pins of the servers' CA, sha256:…, with commas (default: those of --cacert)")
	f.StringVar(&u.files.signers, "allowed-signers", "", "file of those who may sign what the machine runs, see ssh-keygen(1)")
	f.StringArrayVar(&u.told.Mirrors, "mirror", nil, "https URL where the machine fetches releases before it asks etcd; may be given again")
	f.StringArrayVar(&u.agents, "agent", nil, "file that is the pulley-agent to run, for its checksum; may be given again")
	f.StringArrayVar(&u.checksums, "agent-sha256", nil, "its checksum, as HEX or ARCH=HEX with amd64 or arm64 (default: the image's own agent)")
	f.StringArrayVar(&u.told.AgentURLs, "agent-url", nil, "where it is downloaded, beside the servers and mirrors; may be given again")
	f.StringVar(&u.told.PuppetPackage, "puppet-package", "", "package that brings Puppet, like openvox-agent (default: the first that the machine's repositories have)")
	f.StringVar(&u.told.PuppetVersion, "puppet-version", "", "its version (default: the newest there is)")
	f.StringVar(&u.told.PackageRepo, "package-repo", "", "URL of a .deb or .rpm that sets up a package repository, or an apt line 'deb …'")
	f.StringVar(&u.told.Proxy, "proxy", "", "HTTP proxy of the machine's downloads")
	f.StringVar(&u.told.Schedule, "schedule", "", "of the agent, five cron fields (default: every five minutes)")
	f.StringArrayVar(&u.pre, "pre", nil, "script to run before anything is installed; may be given again")
	f.StringArrayVar(&u.post, "post", nil, "script to run at the end; may be given again")
	f.StringArrayVar(&u.steps, "step", nil, "NAME=off, or NAME=/PROGRAM to run instead of a step; may be given again")
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/nodeconfig"
	"pulley/puppet"
)

// writeBootstrapTree writes a release that has one module, the one that keeps the agent's schedule, and one class.
func writeBootstrapTree(dir, schedule, config string) error {
	if err := checkSchedule(schedule); err != nil {
		return err
	}
	if strings.ContainsAny(config, "'\\\n\r%") {
		return fmt.Errorf("cannot start the agent from cron with the settings %s: cron and Puppet read some of its characters otherwise", config)
	}
	command := "/" + nodeconfig.AgentPath + " run --splay"
	if config != "/etc/pulley/agent.yaml" {
		command += " --config " + config
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(dir, "modules", "pulley"), puppet.Module()); err != nil {
		return err
	}
	site := fmt.Sprintf("class { 'pulley':\n  schedule => '%s',\n  command  => '%s',\n}\n", schedule, command)
	if err := os.MkdirAll(filepath.Join(dir, "manifests"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte(site), 0o644)
}

// checkSchedule refuses what would not stay one field of a manifest and one line of a crontab.
func checkSchedule(schedule string) error {
	if strings.ContainsAny(schedule, "'\\\n\r%") || len(strings.Fields(schedule)) != 5 && !strings.HasPrefix(schedule, "@") {
		return cli.Usagef("cannot use schedule %q: give the five fields of a crontab, like '*/5 * * * *'", schedule)
	}
	return nil
}

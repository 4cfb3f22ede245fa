package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/nodeconfig"
	"pulley/internal/schedule"
	"pulley/puppet"
)

// writeBootstrapTree writes a release that has one module, the one that keeps the agent's schedule, and one class.
func writeBootstrapTree(dir, cron, config string) error {
	if err := checkSchedule(cron); err != nil {
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
	site := fmt.Sprintf("class { 'pulley':\n  schedule => '%s',\n  command  => '%s',\n}\n", cron, command)
	if err := os.MkdirAll(filepath.Join(dir, "manifests"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte(site), 0o644)
}

// checkSchedule refuses what cron would not start.
func checkSchedule(text string) error {
	if err := schedule.Check(text); err != nil {
		return cli.Usagef("cannot use schedule %q: %v\nwrite it like %s", text, err, schedule.Like)
	}
	return nil
}

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/cli"
	"pulley/puppet"
)

// writeBootstrapTree writes a release that has one module, the one that keeps the agent's schedule, and one class.
func writeBootstrapTree(dir, schedule, config string) error {
	if strings.ContainsAny(schedule+config, "'\\\n\r%") || len(strings.Fields(schedule)) != 5 && !strings.HasPrefix(schedule, "@") {
		return cli.Usagef("cannot use schedule %q: give the five fields of a crontab, like '*/5 * * * *'", schedule)
	}
	command := "/" + agentPath + " run --splay"
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

func encodeYAML(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}

// writeWhole makes a file appear whole or not at all, and durable: a first boot may end in a power cut.
func writeWhole(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func machineID() string {
	b, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return "" // absent in some containers; it only helps people to tell machines apart
	}
	return strings.TrimSpace(string(b))
}

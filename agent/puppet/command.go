package puppet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pulley/agent"
)

// ErrMissing means that Puppet is not installed on this machine.
var ErrMissing = errors.New("puppet is not installed")

// aioBin is the folder of the program in the packages of Puppet and OpenVox (not those of the distributions). If the
// program exists there, it takes precedence, because such a package was installed deliberately.
const aioBin = "/opt/puppetlabs/bin"

// searchPath returns the folders in which Puppet and its commands find programs. cron's own PATH lacks most of them.
func searchPath() []string {
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if _, err := os.Stat(aioBin); err == nil {
		return append([]string{aioBin}, dirs...)
	}
	return dirs
}

// environ returns the complete environment of Puppet. It is the same for cron, a service and a terminal. It never
// contains RUBYLIB, RUBYOPT, FACTER_… or PUPPET_… of the process that started the agent.
func environ() []string {
	home := "/"
	if os.Geteuid() == 0 {
		home = "/root"
	}
	return []string{"PATH=" + strings.Join(searchPath(), ":"), "HOME=" + home, "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}
}

// find returns the path of the Puppet program.
func (p *Puppet) find() (string, error) {
	name := p.Program
	if name == "" {
		name = "puppet"
	}
	dirs := searchPath()
	if strings.Contains(name, "/") {
		dirs = []string{""}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := exec.LookPath(path); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("cannot run %s: %w\ninstall it with `pulley-agent bootstrap`, or your distribution's package (Debian, Ubuntu: `apt-get install puppet-agent`)", name, ErrMissing)
}

// command prepares the run's folder. It returns the command, with the run's settings inserted after the subcommand.
func (p *Puppet) command(job agent.Job, args ...string) (*exec.Cmd, error) {
	name, err := p.find()
	if err != nil {
		return nil, err
	}
	if err := p.prepare(job); err != nil {
		return nil, err
	}
	sub := 0
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		sub = 1
	}
	all := append([]string{}, args[:sub]...)
	if sub == 1 || len(args) == 0 { // `puppet --version` and similar take no settings
		all = append(all, p.settings(job)...)
	}
	cmd := exec.Command(name, append(all, args[sub:]...)...)
	cmd.Env, cmd.Dir = environ(), "/"
	return cmd, nil
}

// settings returns the options of every command line. All others are in the generated puppet.conf: Puppet ignores an
// unknown setting there, but refuses to start with an unknown option.
func (p *Puppet) settings(job agent.Job) []string {
	return []string{
		"--confdir", filepath.Join(p.RunDir(job.ID), "conf"),
		"--vardir", filepath.Join(p.Dir, "puppet", "var"),
		"--certname", job.Certname,
		"--environment", job.PuppetEnvironment,
		"--color=false",
	}
}

// quoted formats a command line for a shell.
func quoted(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:@%,", r)
		}) {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

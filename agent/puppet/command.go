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

// ErrMissing is returned when there is no Puppet on this machine.
var ErrMissing = errors.New("puppet is not installed")

// aioBin is where the packages of Puppet and OpenVox (not those of the distributions) put the program. Where it exists
// it comes first: such a package is there because somebody chose it.
const aioBin = "/opt/puppetlabs/bin"

// searchPath are the folders in which Puppet, and what Puppet starts, finds programs: cron's own PATH lacks most of them.
func searchPath() []string {
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if _, err := os.Stat(aioBin); err == nil {
		return append([]string{aioBin}, dirs...)
	}
	return dirs
}

// environ is the whole environment of Puppet: the same for cron, a service and a terminal, with no RUBYLIB, RUBYOPT,
// FACTER_… or PUPPET_… of whoever started the agent.
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

// command prepares the run's folder and returns the command with the run's settings put behind the subcommand.
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
	if sub == 1 || len(args) == 0 { // `puppet --version` and its like take no settings
		all = append(all, p.settings(job)...)
	}
	cmd := exec.Command(name, append(all, args[sub:]...)...)
	cmd.Env, cmd.Dir = environ(), "/"
	return cmd, nil
}

// settings are the options that stand on every command line. All others are in the generated puppet.conf: a Puppet that
// does not know one of them ignores it there, and refuses to start when it is an option.
func (p *Puppet) settings(job agent.Job) []string {
	return []string{
		"--confdir", filepath.Join(p.RunDir(job.ID), "conf"),
		"--vardir", filepath.Join(p.Dir, "puppet", "var"),
		"--certname", job.Certname,
		"--environment", job.PuppetEnvironment,
		"--color=false",
	}
}

// quoted is a command line as one would type it into a shell.
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

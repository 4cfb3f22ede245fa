package steps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/agent/upgrade"
	"pulley/internal/atomicfile"
	"pulley/internal/firstboot"
)

// program installs the agent, and makes the first boot resume after a reboot.
type program struct{ *boot }

func (b *program) agentLeft(context.Context) (string, error) {
	there, err := b.inPlace()
	if err != nil {
		return "", err
	}
	if !there {
		return "put this program at " + b.path(nodeconfig.AgentPath), nil
	}
	if other, err := b.resumesElsewhere(); err != nil || other != nil {
		return "make a reboot resume with " + b.path(nodeconfig.AgentPath), err
	}
	return "", nil
}

// inPlace reports whether the installed agent stays: it is this program, or an upgrade installed it. An upgrade is
// newer than userdata, which is written once.
func (b *program) inPlace() (bool, error) {
	program, err := ownProgram()
	if err != nil {
		return false, err
	}
	target := b.path(nodeconfig.AgentPath)
	info, err := os.Stat(target)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&0o111 == 0 {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	there, err := os.ReadFile(target)
	if err != nil {
		return false, err
	}
	if bytes.Equal(there, program) {
		return true, nil
	}
	if b.repeats(firstboot.Agent) { // --from names this step or an earlier one: the operator wants this program
		return false, nil
	}
	state, err := b.ownFolder().Load()
	return err == nil && state.Installed != nil, err
}

func (b *program) ownFolder() upgrade.Folder { return nodeconfig.Under(b.Root).UpgradeFolder() }

// placeAgent copies this program to the path where cron starts it. It keeps upgrades out meanwhile.
func (b *program) placeAgent(context.Context) error {
	lock, err := b.ownFolder().Lock()
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	return errors.Join(b.placeLocked(), lock.Close())
}

func (b *program) placeLocked() error {
	there, err := b.inPlace()
	if err != nil {
		return err
	}
	if !there {
		target := b.path(nodeconfig.AgentPath)
		program, err := ownProgram()
		if err == nil {
			err = os.MkdirAll(filepath.Dir(target), 0o755)
		}
		if err == nil {
			err = atomicfile.Write(target, program, 0o755)
		}
		if err != nil {
			return err
		}
	}
	other, err := b.resumesElsewhere()
	if err != nil || other == nil {
		return err
	}
	return b.writeResumption(*other)
}

func ownProgram() ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(self)
}

// The files that resume a first boot after a reboot. Userdata may have written its own script there, which downloads
// the agent first; it stays.
const (
	resumeUnit   = "etc/systemd/system/pulley-first-boot.service"
	resumeWanted = "etc/systemd/system/multi-user.target.wants/pulley-first-boot.service"
	resumeCron   = "etc/cron.d/pulley-first-boot"
	resumeScript = "var/lib/pulley/first-boot.sh"
)

// resumeHeader begins the files that this program wrote.
const resumeHeader = "# Resumes a first boot after a reboot. Written by pulley-agent, which removes it.\n"

// resumed is the file that starts this program at the next boot.
type resumed struct{ path, text string }

// resumption names the installed program, once there is one: the running program may be in /tmp.
func (b *program) resumption() (resumed, error) {
	program := b.path(nodeconfig.AgentPath)
	there, err := b.inPlace()
	if err == nil && !there {
		program, err = os.Executable()
	}
	if err != nil {
		return resumed{}, err
	}
	args := []string{program, "bootstrap", "--plan", b.PlanPath}
	if b.Root != "/" {
		args = append(args, "--root", b.Root)
	}
	if b.Path != "" {
		args = append(args, "--config", b.Path)
	}
	for _, a := range args {
		if strings.ContainsAny(a, " \t\r\n%'\"\\$") {
			return resumed{}, fmt.Errorf("%q has characters that systemd and cron interpret", a)
		}
	}
	if !b.systemd() {
		if strings.ContainsAny(strings.Join(args, ""), ";&|<>`()#*?[]{}~!") {
			return resumed{}, fmt.Errorf("%q has characters that the shell of cron interprets", args)
		}
		return resumed{resumeCron, resumeHeader + "@reboot root " + strings.Join(args, " ") + "\n"}, nil
	}
	return resumed{resumeUnit, resumeHeader + `[Unit]
Description=First boot of this machine as a node of Pulley
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
ExecStart=` + strings.Join(args, " ") + `
Restart=on-failure
RestartSec=5min
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
`}, nil
}

// resumeAfterReboot writes the file that resumes the first boot after a reboot, unless one exists.
func (b *program) resumeAfterReboot() error {
	r, err := b.resumption()
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.path(r.path)); errors.Is(err, fs.ErrNotExist) {
		if err := b.writeResumption(r); err != nil {
			return err
		}
	}
	if r.path == resumeUnit {
		return b.link(resumeWanted)
	}
	return nil
}

// resumesElsewhere returns the correct file if this program wrote one that starts another program; nil if the file is
// correct.
func (b *program) resumesElsewhere() (*resumed, error) {
	if !b.planned {
		return nil, nil
	}
	r, err := b.resumption()
	if err != nil {
		return nil, err
	}
	there, err := os.ReadFile(b.path(r.path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && (string(there) == r.text || !strings.HasPrefix(string(there), resumeHeader)) {
		return nil, nil
	}
	return &r, err
}

func (b *program) writeResumption(r resumed) error {
	path := b.path(r.path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(r.text), 0o644)
}

// link makes systemd start a unit with the machine (systemctl(1), enable).
func (b *boot) link(wanted string) error {
	path := b.path(wanted)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Symlink("../"+filepath.Base(path), path)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

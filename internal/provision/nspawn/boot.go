package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/provision"
)

const (
	exitReboot   = 133              // of systemd-nspawn --keep-unit: whoever started it is to start it again
	bootDeadline = time.Minute      // from the start of systemd-nspawn until the machine's first process runs
	offDeadline  = 90 * time.Second // from the signal to power off, which the host's own end waits for
	restDeadline = 10 * time.Second // until the kernel has dropped what a machine left
)

// live boots a machine, again whenever it reboots, and returns what it is when it is off.
func live(h handover, stop <-chan os.Signal) state {
	s := state{State: provision.Building}
	for {
		s.Boots++
		fmt.Fprintf(os.Stdout, "--- boot %d of %s\n", s.Boots, h.About.Name)
		again, err := boot(h, stop, func() error {
			s.State = provision.Running
			return writeJSON(stateFile, s)
		})
		if restErr := rest(h.About); err == nil {
			err = restErr
		}
		switch {
		case err == nil && again:
			continue
		case err == nil:
			s.State, s.Problem = provision.Stopped, "it was powered off"
		case s.State == provision.Running:
			s.State, s.Problem = provision.Stopped, err.Error()
		default:
			s.State, s.Problem = provision.Failed, err.Error()
		}
		return s
	}
}

// boot runs the machine until it is off. again says that it reboots.
func boot(h handover, stop <-chan os.Signal, running func() error) (again bool, err error) {
	dir := filepath.Join(groupMount, h.About.Group, "machine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, fmt.Errorf("cannot make its control group: %w", err)
	}
	group, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer group.Close()
	cmd := exec.Command("systemd-nspawn", "--quiet", "--boot", "--directory="+keptRoot, "--settings=no",
		"--machine="+container(h.About.ID), "--hostname="+h.About.Name, "--network-bridge="+h.Bridge,
		"--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("cannot start systemd-nspawn: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	up, deadline := time.NewTicker(pollInterval), time.After(bootDeadline)
	defer up.Stop()
	for {
		select {
		case <-ended:
			return judge(err)
		case <-up.C:
			// systemd-nspawn puts the machine's processes, and only those, into this group.
			if populated(filepath.Join(dir, "payload")) {
				up.Stop()
				deadline = nil
				if problem := running(); problem != nil { // nobody would see this machine run
					_ = cmd.Process.Kill()
					<-ended
					return false, problem
				}
			}
		case <-stop: // it powers the machine off
			up.Stop()
			_ = cmd.Process.Signal(unix.SIGTERM)
			deadline = time.After(offDeadline)
		case <-deadline:
			_ = cmd.Process.Kill()
			<-ended
			return false, errors.New("systemd-nspawn was killed: it did neither boot the machine nor power it off in time")
		}
	}
}

// judge tells the ways in which a machine goes off.
func judge(err error) (again bool, _ error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &exit) && exit.ExitCode() == exitReboot:
		return true, nil
	}
	last := ""
	if text, err := os.ReadFile(consoleFile); err == nil {
		last = strings.TrimSpace(tail(string(text), 1))
	}
	return false, fmt.Errorf("systemd-nspawn ended: %w: %s", err, last)
}

// rest ends what a machine left behind, and waits until the names are free that its next boot takes.
func rest(a about) error {
	if err := removeGroup(filepath.Join(a.Group, "machine")); err != nil {
		return err
	}
	for { // orphans become children of the first process
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), restDeadline)
	defer cancel()
	port := "/sys/class/net/vb-" + container(a.ID)
	return poll(ctx, func() (bool, error) {
		_, err := os.Lstat(port)
		return errors.Is(err, os.ErrNotExist), nil
	})
}

// container is the name that systemd-nspawn gives a machine. Its port of the bridge is called so, too, and has 15 bytes.
func container(id string) string { return "p" + id }

func populated(group string) bool {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1\n")
}

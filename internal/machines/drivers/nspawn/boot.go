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

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
)

const (
	exitReboot   = 133              // of systemd-nspawn --keep-unit: its caller starts it again
	bootDeadline = 3 * time.Minute  // from the start of systemd-nspawn until the machine's first process runs
	offDeadline  = 90 * time.Second // from the signal to power off; the host's own power-off waits for it
	restDeadline = time.Minute      // until the kernel has removed the rest of a machine
	writeAgain   = 5 * time.Second  // until a failed write of the state is repeated
)

// live boots a machine, and again when it reboots. It returns the state of the machine when it is off.
func live(h handover, stop <-chan os.Signal) folder.State {
	return liveBy(stop, func(s *folder.State) (again bool, err error) {
		fmt.Fprintf(os.Stdout, "--- boot %d of %s\n", s.Boots, h.about.Name)
		again, err = boot(h, stop, func() error {
			s.State = machines.Running
			return folder.WriteJSON(folder.StateFile, s)
		})
		if restErr := rest(h.about); err == nil {
			err = restErr
		}
		return again, err
	})
}

// liveBy is live with a function that boots the machine once.
func liveBy(stop <-chan os.Signal, boot func(*folder.State) (again bool, err error)) folder.State {
	s := folder.State{State: machines.Building}
	var pause time.Duration
	for {
		s.Boots++
		began := time.Now()
		again, err := boot(&s)
		switch {
		case err == nil && again:
			pause = pauseAfter(time.Since(began), pause, s.Boots)
			select {
			case <-time.After(pause):
				continue
			case <-stop:
			}
			s.State, s.Problem = machines.Stopped, "it was powered off"
		case err == nil:
			s.State, s.Problem = machines.Stopped, "it was powered off"
		case s.State == machines.Running:
			s.State, s.Problem = machines.Stopped, err.Error()
		default:
			s.State, s.Problem = machines.Failed, err.Error()
		}
		return s
	}
}

const (
	firstPause   = time.Second
	longestPause = time.Minute
	longBoot     = 5 * time.Minute // a machine that was up so long does not reboot in a loop
)

// pauseAfter returns the pause before a machine boots again: none the first time, as first boots reboot, and a longer one after
// each short boot. The machine was up for lived after the pause before.
func pauseAfter(lived, before time.Duration, boots int) time.Duration {
	switch {
	case lived >= longBoot, boots <= 1:
		return 0
	case before == 0:
		return firstPause
	}
	return min(2*before, longestPause)
}

// boot runs the machine until it is off. again reports a reboot.
func boot(h handover, stop <-chan os.Signal, running func() error) (again bool, err error) {
	dir := filepath.Join(groupMount, h.about.Group, "machine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, fmt.Errorf("cannot create its control group: %w", err)
	}
	group, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer group.Close()
	cmd := exec.Command("systemd-nspawn", "--quiet", "--boot", "--directory="+keptRoot, "--settings=no",
		"--machine="+container(h.about.ID), "--hostname="+h.about.Name, "--network-bridge="+h.Bridge,
		"--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("cannot start systemd-nspawn: %w", err)
	}
	b := booted{
		signal: cmd.Process.Signal,
		ended:  make(chan struct{}),
		// systemd-nspawn moves only the machine's processes into this group.
		runs: func() bool { return populated(filepath.Join(dir, "payload")) },
	}
	go func() {
		err = cmd.Wait()
		close(b.ended)
	}()
	if killed := b.attend(stop, running); killed != nil {
		return false, killed
	}
	return judge(err)
}

// booted is a systemd-nspawn that has started.
type booted struct {
	signal func(os.Signal) error
	ended  chan struct{}
	runs   func() bool // its machine has processes
}

// attend waits until it has ended, and calls running when the machine runs. The error is the cause for which it was killed.
func (b booted) attend(stop <-chan os.Signal, running func() error) error {
	up, deadline := time.NewTicker(folder.PollInterval), time.After(bootDeadline)
	defer up.Stop()
	for {
		select {
		case <-b.ended:
			return nil
		case <-up.C:
			if !b.runs() {
				continue
			}
			deadline = nil
			if problem := running(); problem != nil { // such as a full disk: the machine continues
				fmt.Fprintf(os.Stderr, "cannot write the state: %v\n", problem)
				up.Reset(writeAgain)
				continue
			}
			up.Stop()
		case <-stop: // systemd-nspawn powers the machine off
			up.Stop()
			_ = b.signal(unix.SIGTERM)
			deadline = time.After(offDeadline)
		case <-deadline:
			_ = b.signal(unix.SIGKILL)
			<-b.ended
			return errors.New("systemd-nspawn was killed: it neither booted the machine nor powered it off within its deadline")
		}
	}
}

// judge distinguishes the ways in which a machine ends.
func judge(err error) (again bool, _ error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &exit) && exit.ExitCode() == exitReboot:
		return true, nil
	}
	return false, fmt.Errorf("systemd-nspawn ended: %w: %s", err, folder.LastLine(folder.LogFile))
}

// rest ends the rest of a machine, and waits until the names that its next boot uses are free.
func rest(a folder.About) error {
	if err := removeGroup(context.Background(), filepath.Join(a.Group, "machine")); err != nil {
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
	return folder.Poll(ctx, func() (bool, error) {
		_, err := os.Lstat(port)
		return errors.Is(err, os.ErrNotExist), nil
	})
}

// container returns the name of a machine for systemd-nspawn. Its port of the bridge has the same name, in at most 15 bytes.
func container(id string) string { return "p" + id }

func populated(group string) bool {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1\n")
}

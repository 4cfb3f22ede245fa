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
)

const (
	exitReboot   = 133              // of systemd-nspawn --keep-unit: whoever started it is to start it again
	bootDeadline = time.Minute      // from the start of systemd-nspawn until the machine's first process runs
	offDeadline  = 90 * time.Second // from the signal to power off, which the host's own end waits for
	restDeadline = 10 * time.Second // until the kernel has dropped what a machine left
	sayAgain     = 5 * time.Second  // until what could not be written is tried again
)

// live boots a machine, again whenever it reboots, and returns what it is when it is off.
func live(h handover, stop <-chan os.Signal) state {
	return liveBy(stop, func(s *state) (again bool, err error) {
		fmt.Fprintf(os.Stdout, "--- boot %d of %s\n", s.Boots, h.About.Name)
		again, err = boot(h, stop, func() error {
			s.State = machines.Running
			return writeJSON(stateFile, s)
		})
		if restErr := rest(h.About); err == nil {
			err = restErr
		}
		return again, err
	})
}

// liveBy is a machine's life by what boots it once.
func liveBy(stop <-chan os.Signal, boot func(*state) (again bool, err error)) state {
	s := state{State: machines.Building}
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
	longBoot     = 5 * time.Minute // what was up for that long does not reboot in a loop
)

// pauseAfter is how long a machine that reboots waits: not at all the first time, as first boots end so, and longer each time
// that it was up only briefly. It was up for lived after it had waited for before.
func pauseAfter(lived, before time.Duration, boots int) time.Duration {
	switch {
	case lived >= longBoot, boots <= 1:
		return 0
	case before == 0:
		return firstPause
	}
	return min(2*before, longestPause)
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
	b := booted{
		signal: cmd.Process.Signal,
		ended:  make(chan struct{}),
		// systemd-nspawn puts the machine's processes, and only those, into this group.
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

// booted is a systemd-nspawn that was started.
type booted struct {
	signal func(os.Signal) error
	ended  chan struct{}
	runs   func() bool // its machine has processes
}

// attend waits until it has ended, and says when the machine runs. Its error says why it had to be killed.
func (b booted) attend(stop <-chan os.Signal, running func() error) error {
	up, deadline := time.NewTicker(pollInterval), time.After(bootDeadline)
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
			if problem := running(); problem != nil { // a full disk, say: the machine goes on
				fmt.Fprintf(os.Stderr, "cannot write that it runs: %v\n", problem)
				up.Reset(sayAgain)
				continue
			}
			up.Stop()
		case <-stop: // it powers the machine off
			up.Stop()
			_ = b.signal(unix.SIGTERM)
			deadline = time.After(offDeadline)
		case <-deadline:
			_ = b.signal(unix.SIGKILL)
			<-b.ended
			return errors.New("systemd-nspawn was killed: it did neither boot the machine nor power it off in time")
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
	return false, fmt.Errorf("systemd-nspawn ended: %w: %s", err, lastWords(consoleFile))
}

// rest ends what a machine left behind, and waits until the names are free that its next boot takes.
func rest(a about) error {
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

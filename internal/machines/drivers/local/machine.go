// Package local makes machines that are copy-on-write views of this host.
//
// A [Machine] has mount, UTS, PID and IPC namespaces of its own and shares the network, so that 127.0.0.1 reaches what
// the host serves. Its / is an overlay of the host's / on a tmpfs that exists only in its mount namespace. Programs in it
// are the host's own, run as root, and change /etc, /usr and /var for real, for that machine only. When the machine's
// first process ends, the kernel ends all its other processes and drops its mounts and its files with them.
//
// A [Machine] ends with the program that holds it. The machines of a [Provider] do not: each has a supervisor, a process of its own,
// which runs its userdata and its agent.
//
// The package owns the start and end of machines, the programs and files in them, what the supervisors of machines do that outlive the
// program, and scratch folders, which the next program removes where this one was killed.
//
// What a machine is not:
//   - Not a security boundary. Changes of an honest program do not reach the host (no raw devices, kernel settings, modules,
//     clock or network configuration). Those of a hostile program may.
//   - Not all of the host's files: a mount below /, such as /home, is an empty folder in the machine. Config.Binds adds folders.
//   - Not a snapshot: the machine may or may not see later changes of the host's files.
//   - Not booted: no systemd, no syslog, and /run and /tmp start empty. It has the host's /etc/cron.d;
//     Config.Empty hides folders.
//
// The package must never mount anything in the host's mount namespace, write below a machine's paths through the host's
// symlinks, leave a process except a requested supervisor, or need a clean-up after a SIGKILL.
//
// A program that starts machines calls [MaybeInit] first in main: it runs its own executable again as the parts of a machine.
package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
)

const (
	// defaultSizeBytes bounds what a machine may write by default.
	defaultSizeBytes = 1 << 30

	startDeadline = 2 * time.Minute
	closeDeadline = time.Minute

	// namespaces of a machine. It shares the network: a machine reaches the host's services on loopback.
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC
)

// Config describes a machine.
type Config struct {
	Hostname  string   // one label: lower-case letters, digits and hyphens
	SizeBytes int64    // bound of what the machine may write, in memory, with /tmp and /run; 0 is defaultSizeBytes
	Empty     []string // folders of the host that are empty in the machine
	Binds     []Bind   // further files and folders of the host in the machine

	held *os.File // a lock that the end of the machine's last process releases; may be nil
}

// Bind mounts a file or folder of the host, with the mounts below it, read-only in the machine.
type Bind struct {
	From string // absolute, on the host
	To   string // absolute, in the machine; made if missing
}

// Machine is a running machine. Close ends it, and so does the end of this process, also by SIGKILL.
type Machine struct {
	hostname string
	init     *exec.Cmd
	life     *os.File // the machine ends when this closes
	pidfd    *os.File // of the machine's first process
	ended    chan struct{}
	close    sync.Once
}

// Start starts a machine, and returns when its files are in place and Command works. The context bounds the start only.
func Start(ctx context.Context, config Config) (*Machine, error) {
	m, err := start(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("cannot start a local machine: %w", err)
	}
	return m, nil
}

// Check starts a machine and ends it. Its error is the reason why this host cannot run machines.
func Check(ctx context.Context) error {
	m, err := Start(ctx, Config{Hostname: "check"})
	if err != nil {
		return err
	}
	return m.Close()
}

func start(ctx context.Context, config Config) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("it needs root\nrun the same command as root, for example with sudo")
	}
	if !machines.Hostname.MatchString(config.Hostname) {
		return nil, fmt.Errorf("%q is not a hostname of one label\nuse lower-case letters, digits and hyphens, at most 63", config.Hostname)
	}
	if config.SizeBytes == 0 {
		config.SizeBytes = defaultSizeBytes
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()

	m, theirs, err := newMachine(config)
	if err != nil {
		return nil, err
	}
	crash := &bytes.Buffer{}
	m.init.Stderr = crash
	err = m.launch()
	theirs.Close()
	if err != nil {
		m.life.Close()
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("cannot create its namespaces: %w\nin a container, start the container with --privileged", err)
		}
		return nil, fmt.Errorf("cannot create its namespaces: %w", err)
	}

	// Ending the machine closes its end of the socket, which ends setUp below.
	stop := context.AfterFunc(ctx, func() { m.init.Process.Kill() })
	err = m.setUp(config)
	stop()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return m, nil
	}
	closeErr := m.Close()
	switch {
	case ctx.Err() != nil:
		return nil, errors.Join(ctx.Err(), closeErr)
	case closeErr == nil && crash.Len() > 0:
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(crash.String()))
	}
	return nil, errors.Join(err, closeErr)
}

// newMachine returns a machine whose first process has not started, and that process's end of the life line.
func newMachine(config Config) (m *Machine, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "machine's life line")
	m = &Machine{
		hostname: config.Hostname,
		life:     os.NewFile(uintptr(pair[0]), "life line"),
		ended:    make(chan struct{}),
		init: &exec.Cmd{
			Path:       "/proc/self/exe",
			Args:       []string{argInit, config.Hostname},
			Env:        []string{}, // not nil: nothing of this process's environment
			Dir:        "/",
			ExtraFiles: []*os.File{theirs},
		},
	}
	if config.held != nil {
		m.init.ExtraFiles = append(m.init.ExtraFiles, config.held)
	}
	return m, theirs, nil
}

// launch starts the machine's first process.
func (m *Machine) launch() error {
	pidfd := -1
	m.init.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: namespaces,
		Setsid:     true,         // Ctrl-C is for this program, which then ends its machines
		Pdeathsig:  unix.SIGKILL, // ends even a first process that no longer reads its life line
		PidFD:      &pidfd,
	}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig watches the thread that forked: this thread lives until the machine has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.init.Start()
		if err == nil && pidfd >= 0 {
			m.pidfd = os.NewFile(uintptr(pidfd), "machine")
		}
		started <- err
		if err == nil {
			_ = m.init.Wait() // a kill is a normal end of a machine
		}
		close(m.ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	if m.pidfd == nil {
		return errors.Join(errors.New("the kernel has no pidfd\nuse Linux 5.12 or later"), m.Close())
	}
	return nil
}

// setUp sends the first process its configuration, and waits until the machine is ready.
func (m *Machine) setUp(config Config) error {
	if err := json.NewEncoder(m.life).Encode(config); err != nil {
		return fmt.Errorf("its first process ended: %w", err)
	}
	var reply setupReply
	if err := json.NewDecoder(m.life).Decode(&reply); err != nil {
		return fmt.Errorf("its first process ended: %w", err)
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// Pid returns the host's number of the machine's first process, for nsenter(1).
func (m *Machine) Pid() int { return m.init.Process.Pid }

// Close ends the machine at once. When it returns nil, all its processes are gone and its mounts with them.
func (m *Machine) Close() error {
	var err error
	m.close.Do(func() {
		m.init.Process.Kill() // fails only where the process has ended already
		m.life.Close()
		// The kernel lets the first process go only after every other one of its PID namespace has been collected. That
		// includes the runner of a command whose entering process was killed: the host's process 1 collects it.
		select {
		case <-m.ended:
		case <-time.After(closeDeadline):
			err = fmt.Errorf("cannot end machine %s: process %d has not ended after %v", m.hostname, m.Pid(), closeDeadline)
		}
		if m.pidfd != nil {
			m.pidfd.Close()
		}
	})
	return err
}

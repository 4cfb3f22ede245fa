package folder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that a supervisor inherits.
const (
	starterDescriptor = 3 // the connection to the program that started it
	HeldDescriptor    = 4 // the lock of its folder
)

const (
	setUpDeadline = 5 * time.Minute
	endDeadline   = 5 * time.Minute // of the kernel, to end a machine
	// A supervisor identifies itself before its machine is listed. A lock without a holder is left by the end of a supervisor,
	// for an instant, or belongs to another process.
	holderDeadline = 10 * time.Second
)

// Supervisor is a machine's supervisor, seen by the program that started it.
type Supervisor struct {
	cmd   *exec.Cmd
	talk  *os.File
	ended chan struct{}
}

// answer is the one message of a supervisor: the machine's folder is in its place, or why not.
type answer struct {
	Problem string `json:"problem,omitempty"`
}

// Start starts this program again, under another name, as the supervisor of a new machine: in its folder, in a session of its own, and
// with more files beside the lock of the folder.
func (n *New) Start(name string, attr *syscall.SysProcAttr, more ...*os.File) (*Supervisor, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetNonblock(pair[0], true) // for deadlines
	theirs := os.NewFile(uintptr(pair[1]), "supervisor's end")
	defer theirs.Close()
	s := &Supervisor{talk: os.NewFile(uintptr(pair[0]), "supervisor"), ended: make(chan struct{})}
	log, err := os.OpenFile(filepath.Join(n.Dir, LogFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Join(err, s.talk.Close())
	}
	defer log.Close()
	attr.Setsid = true // signals to this program or its terminal do not reach the machine
	s.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{name, n.Name}, Dir: n.Dir, Stdout: log, Stderr: log,
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
		ExtraFiles: append([]*os.File{theirs, n.held}, more...), SysProcAttr: attr,
	}
	if err := s.cmd.Start(); err != nil {
		_ = s.talk.Close()
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w\nin a container, start the container with --privileged", err)
		}
		return nil, fmt.Errorf("cannot start its supervisor: %w", err)
	}
	go func() {
		_ = s.cmd.Wait() // a kill is a normal end of a machine
		close(s.ended)
	}()
	return s, nil
}

// Pid returns the number of the supervisor's process.
func (s *Supervisor) Pid() int { return s.cmd.Process.Pid }

// tell sends the handover and waits for the answer.
func (s *Supervisor) tell(ctx context.Context, handover any) error {
	defer s.talk.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.talk.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = s.talk.SetDeadline(time.Now().Add(setUpDeadline))
	var a answer
	err := json.NewEncoder(s.talk).Encode(handover)
	if err == nil {
		err = json.NewDecoder(s.talk).Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("its supervisor has not answered yet: %w", ctx.Err())
	case err != nil:
		return fmt.Errorf("its supervisor ended: %w: %s", err, LastLine(filepath.Join(s.cmd.Dir, LogFile)))
	case a.Problem != "":
		return errors.New(a.Problem)
	}
	return nil
}

// Supervise is the beginning of a supervisor. It reads the handover, calls setUp, and moves the machine's folder to its place. The working
// folder is the machine's; all paths are relative, because the folder moves. From then on the log is kept small.
func Supervise(handover any, setUp func(About) error) error {
	// The machine must not inherit the locks.
	_ = unix.CloseRange(starterDescriptor, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	var stat unix.Stat_t
	if unix.Fstat(starterDescriptor, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("cannot supervise a machine: this name is for internal use")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	talk := os.NewFile(starterDescriptor, "starter")
	defer talk.Close()
	if err := json.NewDecoder(talk).Decode(handover); err != nil {
		return fmt.Errorf("cannot read which machine to supervise: %w", err) // the starter was killed: there is no machine
	}
	var about About
	err := identify(HeldDescriptor)
	if err == nil {
		err = ReadJSON(AboutFile, &about)
	}
	if err == nil {
		err = setUp(about)
	}
	if err == nil {
		if err = place(about); err != nil {
			err = fmt.Errorf("cannot move its folder to its place: %w", err)
		}
	}
	var a answer
	if err != nil {
		a.Problem = err.Error()
	}
	_ = json.NewEncoder(talk).Encode(a) // the pipe has no reader if the starter was killed
	go keepSmall(LogFile)
	return err
}

// endSupervisor kills the supervisor of the machine in a folder, and waits until nothing holds the lock of the folder.
func endSupervisor(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, endDeadline)
	defer cancel()
	identified := time.Now()
	err := Poll(ctx, func() (bool, error) {
		held, err := isHeld(dir)
		if err != nil || !held {
			return !held, err
		}
		found, err := kill(dir)
		switch {
		case found:
			identified = time.Now()
		case err == nil && time.Since(identified) > holderDeadline:
			path := filepath.Join(dir, heldFile)
			err = fmt.Errorf("cannot end its supervisor: the supervisor that locks %s is unknown\nfind the process with `fuser %[1]s`, end it, and try again", path)
		}
		return false, err
	})
	if ctx.Err() != nil {
		err = fmt.Errorf("its processes have not ended: %w", ctx.Err())
	}
	return err
}

// Kill kills the supervisor of the machine in a folder, if there is one, and never another process that got its number.
func Kill(dir string) error {
	_, err := kill(dir)
	return err
}

// kill is Kill. It also reports whether a supervisor has identified itself.
func kill(dir string) (found bool, err error) {
	file, err := os.Open(filepath.Join(dir, heldFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer file.Close()
	pid, err := holder(file)
	if err != nil || pid == 0 { // it is just starting
		return false, err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true, nil
	} else if err != nil {
		return true, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	// The process still has the lock: the descriptor is that of the same process.
	if again, err := holder(file); err != nil || again != pid {
		return true, err
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return true, os.NewSyscallError("pidfd_send_signal", err)
	}
	return true, nil
}

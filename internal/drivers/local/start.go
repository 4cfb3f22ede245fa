package local

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
)

// supervisorAnswer is a supervisor's one answer to the program that started it: the machine's folder is in its place, or why not.
type supervisorAnswer struct {
	Problem string `json:"problem,omitempty"`
	Exists  bool   `json:"exists,omitempty"` // another supervisor has taken the place
}

// start makes a machine's folder aside and starts a supervisor in it, which moves the folder to its place. A machine therefore always
// has a supervisor, whichever program is killed. A supervisor continues when the context ends.
func (p *Provider) start(ctx context.Context, o machines.Order) error {
	a := about{
		About: folder.NewAbout(newID(), p.config.Mark, o), Flavor: o.Flavor,
		Agent: p.config.Agent, Interval: p.config.Interval, Hidden: append(HostState(), p.fleet.Root),
	}
	dir := p.fleet.New(a.Name, a.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	held, err := folder.TryLock(filepath.Join(dir, folder.HeldFile))
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer held.Close() // the supervisor has it, too
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, userdataFile), o.Userdata, 0o600),
		folder.WriteJSON(filepath.Join(dir, folder.StateFile), folder.State{State: machines.Building}),
		folder.WriteJSON(filepath.Join(dir, folder.AboutFile), a))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return launchSupervisor(ctx, dir, held)
}

// launchSupervisor starts the supervisor of a folder and waits until it has put the folder in its place.
func launchSupervisor(ctx context.Context, dir string, held *os.File) error {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{argSupervise, filepath.Base(dir)}, Dir: dir, Env: []string{},
		Stdout: log, Stderr: log, ExtraFiles: []*os.File{held, theirs},
		SysProcAttr: &unix.SysProcAttr{Setsid: true}, // signals to this program or its terminal do not reach the machine
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot start its supervisor: %w", err), os.RemoveAll(dir))
	}
	go func() { _ = cmd.Wait() }() // for a program that lives longer than the machine
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := io.ReadAll(ours)
	if ctx.Err() != nil {
		return fmt.Errorf("its supervisor has not answered yet: %w", ctx.Err())
	}
	var answer supervisorAnswer
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		return fmt.Errorf("its supervisor ended: %w: %s", err, folder.LastLine(filepath.Join(dir, logFile)))
	}
	switch {
	case answer.Exists:
		return nil
	case answer.Problem != "":
		return errors.New(answer.Problem)
	}
	return nil
}

func newID() string {
	id := make([]byte, 8)
	rand.Read(id)
	return fmt.Sprintf("%x", id)
}

// endDeadline bounds how long the kernel takes to end a machine.
const endDeadline = time.Minute

// identify takes a lock whose holder the kernel reports. The end of this process releases it, and so does closing any descriptor of
// the file: nothing else in this process may open it.
func identify(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return nil
}

// endSupervisor kills the supervisor of the machine in a folder, and waits until the whole machine is gone.
func endSupervisor(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, endDeadline)
	defer cancel()
	err := folder.Poll(ctx, func() (bool, error) {
		held, err := folder.Held(filepath.Join(dir, folder.HeldFile))
		if err == nil && held {
			err = killSupervisor(dir)
		}
		return !held, err
	})
	if ctx.Err() != nil {
		err = fmt.Errorf("its processes have not ended: %w", ctx.Err())
	}
	return err
}

// killSupervisor kills the holder of the lock, if there is one, and never another process that got its number.
func killSupervisor(dir string) error {
	file, err := os.Open(filepath.Join(dir, supervisorFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is just starting
	} else if err != nil {
		return err
	}
	defer file.Close()
	pid, err := holder(file)
	if err != nil || pid == 0 {
		return err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	// The process still has the lock: the descriptor is that of the same process.
	if again, err := holder(file); err != nil || again != pid {
		return err
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

// holder returns the number of the process that has the lock, 0 where none has it.
func holder(file *os.File) (pid int, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, &os.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	switch {
	case lock.Type == unix.F_UNLCK:
		return 0, nil
	case lock.Pid <= 0:
		return 0, errors.New("its supervisor is in another PID namespace\nrun the same command where the machine was made")
	}
	return int(lock.Pid), nil
}

package nspawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/drivers/folder"
)

// handover is the one message to a supervisor.
type handover struct {
	About  about  `json:"about"`
	Image  string `json:"image"`
	Bridge string `json:"bridge"`
	Files  []file `json:"files"`
}

// answer is the one message of a supervisor: the machine's folder is in its place and the machine boots, or why not.
type answer struct {
	Problem string `json:"problem,omitempty"`
}

// start makes a machine's folder aside and starts a supervisor in it, which moves the folder to its place when the machine is ready. A
// machine therefore always has a supervisor, whichever program is killed. A supervisor that has read its handover continues, another one
// ends.
func (p *Provider) start(ctx context.Context, image Image, a about, files []file) error {
	dir := p.fleet.New(a.Name, a.ID)
	for _, sub := range []string{"upper", "work"} { // upper is the machine's /
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	lock, err := folder.Lock(ctx, filepath.Join(dir, folder.HeldFile))
	if err != nil {
		return err
	}
	defer lock.Close() // the supervisor has it, too
	k, err := launch(ctx, dir, lock, image, &a)
	if err == nil {
		err = k.tell(ctx, handover{a, image.Dir, p.config.Bridge, files})
	}
	if err == nil {
		return nil
	}
	if k != nil {
		_ = k.talk.Close()
	}
	if ctx.Err() != nil { // the supervisor continues or ends: the next call sees which
		return err
	}
	if k != nil {
		_ = k.cmd.Process.Kill()
		<-k.ended
	}
	return errors.Join(err, p.undo(ctx, a))
}

// undo removes a machine that did not start and has no supervisor. Its supervisor may have moved it to its place before it ended.
func (p *Provider) undo(ctx context.Context, a about) error {
	err := p.erase(ctx, p.fleet.New(a.Name, a.ID))
	is, _, ok, lookErr := p.look(a.Name)
	if lookErr != nil || !ok || is.ID != a.ID {
		return errors.Join(err, lookErr)
	}
	gone, discardErr := p.fleet.Discard(a.Name, a.ID)
	return errors.Join(err, discardErr, p.erase(ctx, gone))
}

// supervisor is a machine's supervisor in the program that started it.
type supervisor struct {
	cmd   *exec.Cmd
	talk  *os.File
	ended chan struct{}
}

// launch starts a supervisor in the machine's own control group, where it waits for its handover. The record that finds it again is written
// before.
func launch(ctx context.Context, dir string, lock *os.File, image Image, a *about) (*supervisor, error) {
	group, bySystemd, err := groupFor(a.ID)
	if err != nil {
		return nil, err
	}
	a.Group = group
	if err := folder.WriteJSON(filepath.Join(dir, folder.AboutFile), a); err != nil {
		return nil, err
	}
	if !bySystemd {
		if err := makeGroup(group); err != nil {
			return nil, err
		}
	}
	k, err := startSupervisor(dir, lock, image, a)
	if err != nil || !bySystemd {
		return k, err
	}
	if a.Group, err = scope(ctx, a.ID, a.Name, k.cmd.Process.Pid); err != nil {
		return k, err
	}
	return k, folder.WriteJSON(filepath.Join(dir, folder.AboutFile), a)
}

// startSupervisor runs this program as a supervisor: in a session, a mount namespace and a PID namespace of its own.
func startSupervisor(dir string, lock *os.File, image Image, a *about) (*supervisor, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetNonblock(pair[0], true) // for deadlines
	theirs := os.NewFile(uintptr(pair[1]), "supervisor's end")
	defer theirs.Close()
	k := &supervisor{talk: os.NewFile(uintptr(pair[0]), "supervisor"), ended: make(chan struct{})}
	console, err := os.OpenFile(filepath.Join(dir, consoleFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	k.cmd = &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{argSupervise, a.Name},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
		Dir:        dir,
		Stdout:     console,
		Stderr:     console,
		ExtraFiles: []*os.File{theirs, lock},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		},
	}
	if image.lock != nil {
		k.cmd.ExtraFiles = append(k.cmd.ExtraFiles, image.lock)
	}
	if a.Group != "" {
		root, err := groupsRoot()
		if err != nil {
			return nil, err
		}
		group, err := os.Open(filepath.Join(root, a.Group))
		if err != nil {
			return nil, err
		}
		defer group.Close()
		k.cmd.SysProcAttr.UseCgroupFD, k.cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if err := k.cmd.Start(); err != nil {
		_ = k.talk.Close()
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w\nin a container, start the container with --privileged", err)
		}
		return nil, fmt.Errorf("cannot start its supervisor: %w", err)
	}
	go func() {
		_ = k.cmd.Wait() // a kill is a normal end of a machine
		close(k.ended)
	}()
	return k, nil
}

// tell sends the handover and waits for the answer.
func (k *supervisor) tell(ctx context.Context, h handover) error {
	defer k.talk.Close()
	stop := context.AfterFunc(ctx, func() { _ = k.talk.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = k.talk.SetDeadline(time.Now().Add(setUpDeadline))
	var a answer
	err := json.NewEncoder(k.talk).Encode(h)
	if err == nil {
		err = json.NewDecoder(k.talk).Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("cannot talk to its supervisor: %w", err)
	case a.Problem != "":
		return errors.New(a.Problem)
	}
	return nil
}

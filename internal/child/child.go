// Package child runs child processes: in a session of their own, with a deadline, a gentle signal and then a hard one, bounded
// output, and an environment that the caller chose. What a child leaves when it ends is ended with it, unless the caller keeps it. It also finds processes
// with their descendants in /proc. Where there is none, as on macOS, only the group of a child ends with it: processes in sessions of their own stay.
//
// No other package may start a process, except the first processes of machines in internal/machines/drivers. It must never signal the
// number of a process whose status was read: it may be another process's by then.
package child

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/shellquote"
)

// Command is a program to start.
type Command struct {
	Path   string   // with a slash; or a name, looked up in this process's PATH
	Args   []string // without the program's name
	Dir    string
	Env    []string // complete: nothing is inherited. See Filtered and WithoutOwn
	Stdin  io.Reader
	Stdout io.Writer // nil: discarded, as Stderr
	Stderr io.Writer
	Files  []*os.File    // descriptors 3 and up
	Grace  time.Duration // from SIGTERM to SIGKILL; 0: SIGKILL at once

	Left     Left   // what may stay of the processes that it leaves
	Terminal bool   // it stays in the group and session of this process: it may read the terminal, and gets its Ctrl-C
	Bound    bool   // the kernel of Linux kills it, but not what it started, when this process dies
	ReadOnly string // a folder that it sees read-only, in a PID namespace of its own; needs the right to create namespaces
}

// String returns the quoted command line.
func (c Command) String() string { return shellquote.Join(append([]string{c.Path}, c.Args...)) }

// Left is what may stay when a program has ended by itself.
type Left int

// Kinds of Left. At a deadline, all end that the program waits for.
const (
	EndAll       Left = iota // nothing, in other sessions neither; a process with a session and an environment of its own (env -i setsid) stays
	KeepServices             // processes in sessions of their own, as a daemon is
	KeepAll                  // all
)

// leftover is a variable by which processes are found that a child left.
const leftover = "PULLEY_CHILD="

// The wait for a program whose file is open for writing.
const (
	busyDeadline = time.Second
	busyPause    = 5 * time.Millisecond
)

// restDeadline limits the wait for output after the end, from processes that it may leave.
const restDeadline = 2 * time.Second

// Child is a started command.
type Child struct {
	Process
	command Command
	cmd     *exec.Cmd
	mark    string // the variable of its environment; "" if processes may stay

	attributes *syscall.SysProcAttr

	reading sync.Mutex    // held while signals are sent, and while the status is read
	ended   chan struct{} // closed when it has ended, before its status is read
}

// Start starts the program. The caller must call Wait.
func (c Command) Start() (*Child, error) {
	private()
	p := &Child{command: c, ended: make(chan struct{}), attributes: &syscall.SysProcAttr{Setsid: !c.Terminal}}
	if c.Left == EndAll && !c.Terminal {
		p.mark = leftover + rand.Text()
	}
	if c.Bound {
		bind(p.attributes)
	}
	p.cmd = p.build()
	started := make(chan error, 1)
	go p.follow(started)
	if err := <-started; err != nil {
		return nil, err
	}
	p.Process, _ = Read(p.cmd.Process.Pid)
	p.PID = p.cmd.Process.Pid
	return p, nil
}

// private keeps the descriptors that this process inherited, from a shell or a supervisor, from its children. Go opens its own so.
func private() {
	entries, _ := os.ReadDir(ownDescriptors)
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// follow starts the program, and waits for its end without reading its status: until then, it keeps its number as a zombie.
func (p *Child) follow(started chan<- error) {
	runtime.LockOSThread() // the kernel takes the end of this thread for the end of the parent
	var err error
	if p.command.ReadOnly == "" {
		defer runtime.UnlockOSThread()
	} else { // the thread ends with this goroutine; its mount namespace stays with the program
		err = protect(p.attributes, p.command.ReadOnly)
	}
	if err == nil {
		err = explained(p.cmd.Path, p.start())
	}
	started <- err
	if err != nil {
		return
	}
	defer close(p.ended)
	call, byPID := waitCall()
	var status [16]uint64 // no kernel writes more
	for {
		_, _, problem := syscall.Syscall6(call, byPID, uintptr(p.cmd.Process.Pid), uintptr(unsafe.Pointer(&status)), syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if problem != syscall.EINTR {
			return
		}
	}
}

// build returns the program as os/exec starts it, once.
func (p *Child) build() *exec.Cmd {
	c := p.command
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Dir, c.Stdin, c.Stdout, c.Stderr, c.Files
	cmd.Env = slices.Concat([]string{}, c.Env) // nil would be this process's
	if p.mark != "" {
		cmd.Env = append(cmd.Env, p.mark)
	}
	cmd.WaitDelay, cmd.SysProcAttr = restDeadline, p.attributes
	return cmd
}

// start starts the program, and waits if its file is open for writing: a child that another goroutine starts meanwhile holds the
// descriptor until it runs its own program. See https://github.com/golang/go/issues/22315.
func (p *Child) start() error {
	for end := time.Now().Add(busyDeadline); ; time.Sleep(busyPause) {
		err := p.cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(end) {
			return err
		}
		p.cmd = p.build()
	}
}

// CanRun returns an error if no program can run in a folder, because its file system is mounted noexec.
func CanRun(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Flags&noexec == 0 {
		return nil
	}
	return fmt.Errorf("%s is mounted noexec\nmount it with exec", dir)
}

// explained adds the cause that the kernel's error does not tell: a mount, or the first line of a script.
func explained(path string, err error) error {
	if err == nil {
		return nil
	}
	var line string
	if f, unreadable := bounded.Open(path); unreadable == nil {
		head, _ := io.ReadAll(io.LimitReader(f, 256))
		line, _, _ = strings.Cut(string(head), "\n")
		_ = f.Close()
	}
	interpreter, isScript := strings.CutPrefix(line, "#!")
	cause := ""
	switch {
	case errors.Is(err, syscall.EACCES) && CanRun(filepath.Dir(path)) != nil:
		cause = "its file system is mounted noexec"
	case errors.Is(err, syscall.ENOENT) && strings.HasSuffix(line, "\r"):
		cause = "its first line has a line end of Windows"
	case errors.Is(err, syscall.ENOENT) && isScript:
		cause = "its interpreter " + strings.TrimSpace(interpreter) + " does not exist"
	case errors.Is(err, syscall.ETXTBSY):
		cause = "a process has it open for writing"
	case errors.Is(err, syscall.ENOEXEC) && !isScript:
		cause = "it does not begin with #! and is no program of this machine"
	default:
		return err
	}
	return fmt.Errorf("cannot start it: %w: %s", cmp.Or(errors.Unwrap(err), err), cause)
}

// Ended is closed when the program has ended. Its number is not reused before Wait.
func (p *Child) Ended() <-chan struct{} { return p.ended }

func (p *Child) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// End ends the program: gently first, then with all that it started and waits for. It returns false if a process survives
// SIGKILL.
func (p *Child) End() bool {
	p.reading.Lock()
	defer p.reading.Unlock()
	target := -p.PID // its group
	if p.command.Terminal {
		target = p.PID
	}
	return p.end(target, p.command.Grace, p.hasEnded)
}

// EndWithin is End with another time between the signals. 0 leaves out the gentle one.
func (p *Child) EndWithin(grace time.Duration) bool {
	p.command.Grace = grace
	return p.End()
}

// ErrOutlived is the error of a program that is blocked in the kernel: it survived SIGKILL.
var ErrOutlived = errors.New("it outlived SIGKILL")

// Wait waits until the program has ended, ends what it left, and reads its status. The error is nil for the exit code 0,
// also if a process keeps the output open, or the input was not read. Otherwise it is an *exec.ExitError, or an error of a
// writer.
func (p *Child) Wait() error {
	<-p.ended
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.command.Left != KeepAll && !p.command.Terminal {
		p.endLeft()
	}
	err := p.cmd.Wait()
	if p.cmd.ProcessState.Success() && (errors.Is(err, exec.ErrWaitDelay) || errors.Is(err, syscall.EPIPE)) {
		return nil
	}
	return err
}

// State returns the status after Wait.
func (p *Child) State() *os.ProcessState { return p.cmd.ProcessState }

// ExitCode returns the exit code after Wait; 128+n if signal n ended it.
func (p *Child) ExitCode() int {
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// endLeft ends the processes of the session of a program that has ended; with a mark, those of other sessions too.
func (p *Child) endLeft() {
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	for began := time.Now(); time.Since(began) < hardWait; pause(began) {
		left := slices.DeleteFunc(all(), func(o Process) bool { return o.Zombie || o.PID == p.PID || !p.left(o) })
		if len(left) == 0 {
			return
		}
		left.Signal(syscall.SIGKILL)
	}
}

func (p *Child) left(other Process) bool {
	if other.Session == p.PID {
		return true
	}
	if p.mark == "" || other.Start < p.Start {
		return false
	}
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(other.PID), "environ")) // only of the own user's
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), p.mark)
}

// Run runs the program until it ends or ctx does, which ends it. The error is that of Wait, or the cause with which ctx ended
// it.
func (c Command) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p, err := c.Start()
	if err != nil {
		return err
	}
	select {
	case <-p.Ended():
	case <-ctx.Done():
		if p.hasEnded() {
			break
		}
		if !p.End() {
			return ErrOutlived
		}
		_ = p.Wait()
		return context.Cause(ctx)
	}
	return p.Wait()
}

// maxSaid limits the standard error to keep for an error, in bytes.
const maxSaid = 4 << 10

// Output is Run, and returns the standard output: at most this number of bytes, or the error is a *bounded.TooLargeError and
// the program was ended. Without a writer for it, the standard error is part of the error.
func (c Command) Output(ctx context.Context, most int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, said := &output{most: most, over: cancel}, &clip.Tail{Limit: maxSaid}
	c.Stdout = out
	if c.Stderr == nil {
		c.Stderr = said
	}
	err := c.Run(ctx)
	if errors.Is(err, ErrOutlived) { // it may still write
		return nil, err
	}
	if out.large != nil {
		return nil, out.large
	}
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && said.String() != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return out.data, err
}

// output keeps what is written up to a limit. What is beyond it ends the program.
type output struct {
	data  []byte // no bytes.Buffer: its ReadFrom has no limit
	most  int64
	over  context.CancelCauseFunc
	large error
}

func (o *output) Write(data []byte) (int, error) {
	if int64(len(o.data)+len(data)) > o.most {
		o.large = cmp.Or[error](o.large, &bounded.TooLargeError{Limit: o.most})
		o.over(o.large)
		return 0, o.large
	}
	o.data = append(o.data, data...)
	return len(data), nil
}

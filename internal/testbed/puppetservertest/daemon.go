package puppetservertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Deadlines, for machines that are much slower than this one.
const (
	startTimeout = 10 * time.Minute
	stopTimeout  = 90 * time.Second
)

// daemon is one process of a server in a folder of its own.
type daemon struct {
	Name string
	dir  string

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{} // closed when the process has ended
}

// restart is a file where Puppet's servers write "1" when they answer.
func (s *daemon) restart() string { return filepath.Join(s.dir, "restart") }
func (s *daemon) log() string     { return filepath.Join(s.dir, "log.txt") }

// serve starts one of Puppet's servers, with a small heap and compilers that prefer a short start, and returns when it answers.
func (s *daemon) serve(args ...string) error {
	if err := os.WriteFile(s.restart(), []byte("0"), 0o644); err != nil {
		return err
	}
	args = append(append([]string{"-Xms64m", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}, args...), "--restart-file", s.restart())
	if err := s.run(exec.Command("java", args...)); err != nil {
		return err
	}
	return s.answers(time.Now().Add(startTimeout))
}

// run starts the process.
func (s *daemon) run(c *exec.Cmd) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c.Dir, c.Stdout, c.Stderr = s.dir, log, log
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid, c.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig watches the thread that forked: it lives as long as the server
		defer close(ended)
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start %s: %w", s.Name, err)
	}
	s.process, s.ended = c.Process, ended
	return nil
}

// answers waits until the server has started.
func (s *daemon) answers(end time.Time) error {
	for {
		if b, err := os.ReadFile(s.restart()); err == nil && bytes.HasPrefix(b, []byte("1")) {
			return nil
		}
		var err error
		select {
		case <-s.ended:
			err = errors.New("it ended")
		case <-time.After(100 * time.Millisecond):
			if time.Now().After(end) {
				err = fmt.Errorf("it did not answer within %s", startTimeout)
				_ = syscall.Kill(-s.process.Pid, syscall.SIGKILL)
			}
		}
		if err != nil {
			return fmt.Errorf("cannot start %s: %w\n%s", s.Name, err, s.Log())
		}
	}
}

// Down stops the server as systemd does.
func (s *daemon) Down(t testing.TB) {
	t.Helper()
	s.end(t, syscall.SIGTERM)
}

// end sends a signal that ends the process, and waits for its end.
func (s *daemon) end(t testing.TB, signal os.Signal) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return
	}
	_ = s.process.Signal(signal)
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		t.Fatalf("%s does not stop\n%s", s.Name, s.Log())
	}
}

// Kill ends the server at once.
func (s *daemon) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running() {
		_ = syscall.Kill(-s.process.Pid, syscall.SIGKILL)
		<-s.ended
	}
}

// Process returns the running server's process, for tests that stop it for a time (SIGSTOP).
func (s *daemon) Process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Log returns the end of the server's log.
func (s *daemon) Log() string {
	b, _ := os.ReadFile(s.log())
	return string(b[max(0, len(b)-8000):])
}

func (s *daemon) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

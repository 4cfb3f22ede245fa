package upgrade

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain makes this test program the candidate that it watches.
func TestMain(m *testing.M) {
	if how := os.Getenv("CANDIDATE"); how == "tester" { // runs the self-test of a candidate that hangs, and is killed
		c := Command{Path: "/bin/sh", Args: []string{"-c", `exec >"$FIFO"; echo hangs; exec sleep 1000`}, Log: slog.New(slog.DiscardHandler)}
		_, _, _ = SelfTest(context.Background(), c, time.Minute)
		os.Exit(0)
	} else if how != "" {
		candidate(how)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func candidate(how string) {
	teller, err := OpenTeller(Descriptor)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch how {
	case "good":
		for _, s := range []string{"observe", "desire", "report"} {
			teller.Step(s)
		}
		teller.End(Ending{Code: 0})
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		teller.Step("observe")
		fmt.Println("hangs")
		<-time.After(time.Hour)
	case "gentle":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		teller.Step("observe")
		fmt.Println("hangs")
		<-signals
		os.Exit(1)
	case "child": // a Puppet that it starts must not inherit the pipe
		teller.Step("observe")
		fd, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(Descriptor))
		fmt.Println(fd, err)
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, Descriptor, syscall.F_GETFD, 0)
		teller.End(Ending{Code: int(flags & syscall.FD_CLOEXEC)})
		os.Exit(int(flags & syscall.FD_CLOEXEC))
	case "shot": // killed by a shutdown that signals it first
		teller.Step("observe")
		fmt.Println("hangs")
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		<-time.After(time.Hour)
	case "parent": // watches a candidate that ignores signals, and is killed
		os.Setenv("CANDIDATE", "deaf")
		Watch(context.Background(), command(os.Stdout), quick())
	}
}

func command(out io.Writer) Command {
	self, _ := os.Executable()
	return Command{Path: self, Stdout: out, Stderr: out, Log: slog.New(slog.DiscardHandler)}
}

func quick() Proof {
	return Proof{SelfTest: 10 * time.Second, FirstStep: 20 * time.Second, Step: time.Minute, Slow: time.Minute, Apply: time.Minute}
}

// If a candidate's messages are lost, a good candidate is dropped.
func TestWatchRecordsCandidate(t *testing.T) {
	t.Setenv("CANDIDATE", "good")
	trial := Watch(t.Context(), command(io.Discard), quick())
	if got := strings.Join(trial.Steps, " "); got != "observe desire report" || trial.Ending == nil || trial.Code != 0 || trial.Late != "" {
		t.Errorf("%+v", trial)
	}
	if finding, why := Judge(trial); finding != Good {
		t.Errorf("%s: %s", finding, why)
	}
}

// A Puppet with the inherited pipe would make the agent wait for a candidate that has exited.
func TestChildrenDoNotInheritPipe(t *testing.T) {
	t.Setenv("CANDIDATE", "child")
	if trial := Watch(t.Context(), command(io.Discard), quick()); trial.Code != 1 || trial.Ending == nil {
		t.Errorf("%+v", trial)
	}
}

// A candidate that hangs and ignores SIGTERM must not prevent the node's ticks.
func TestWatchEndsHangingCandidate(t *testing.T) {
	t.Setenv("CANDIDATE", "gentle")
	limits := quick()
	limits.Step = 200 * time.Millisecond
	trial := Watch(t.Context(), command(io.Discard), limits)
	if trial.Late != "observe" || trial.Code != 1 {
		t.Errorf("%+v", trial)
	}
	t.Setenv("CANDIDATE", "deaf")
	began := time.Now()
	trial = Watch(t.Context(), command(io.Discard), limits)
	if trial.Late != "observe" || trial.Signal != "killed" {
		t.Errorf("%+v", trial)
	}
	if took := time.Since(began); took > gentleWait+10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// An agent that is signalled to stop must end itself and the candidate, without a doubt about the candidate.
func TestWatchEndsOnSignal(t *testing.T) {
	t.Setenv("CANDIDATE", "gentle")
	ctx, cancel := context.WithCancel(t.Context())
	trial := Watch(ctx, command(calls(cancel)), quick())
	if finding, _ := Judge(trial); finding != Nothing || !trial.Stopped {
		t.Errorf("%+v", trial)
	}
}

// calls is called on every write.
type calls func()

func (c calls) Write(b []byte) (int, error) {
	c()
	return len(b), nil
}

// A candidate that hangs after its watcher was killed would hold the node's lock until an operator ends it.
func TestCandidateDoesNotOutliveWatcher(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	inherited, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The watcher needs its own pipe under this descriptor, because its TestMain treats it as a candidate.
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env: append(os.Environ(), "CANDIDATE=parent"), Files: []*os.File{nil, write, os.Stderr, ours},
	})
	if err != nil {
		t.Fatal(err)
	}
	write.Close()
	ours.Close()
	defer inherited.Close()
	line := make([]byte, len("hangs\n"))
	if _, err := io.ReadFull(read, line); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	// The candidate holds the other end of the pipe while it lives.
	if err := read.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(read); err != nil {
		t.Errorf("the candidate still runs: %v", err)
	}
}

// The lines of a broken candidate must neither block it nor fill the agent's memory.
func TestListenSkipsInvalidLines(t *testing.T) {
	words := make(chan word)
	text := "step a\n" + strings.Repeat("x", 3*maxLine) + "\nend {\nnew words 1\n\nstep b\nend {\"code\":3}\nstep c"
	go listen(strings.NewReader(text), words)
	var got []string
	for w := range words {
		if w.ending != nil {
			got = append(got, fmt.Sprint("end ", w.ending.Code))
			continue
		}
		got = append(got, w.step)
	}
	if s := strings.Join(got, ","); s != "a,b,end 3" {
		t.Errorf("heard %s", s)
	}
}

// The first end of a candidate is its result, whatever it reports afterwards.
func TestCandidateEndsOnce(t *testing.T) {
	words, gone := make(chan word), make(chan struct{})
	go func() {
		words <- word{ending: &Ending{Code: 1}}
		words <- word{ending: &Ending{Code: 2}}
		close(gone)
		close(words)
	}()
	trial := follow(t.Context(), words, gone, Proof{FirstStep: time.Minute, Step: time.Minute}, func(string) {})
	if trial.Ending == nil || trial.Ending.Code != 1 {
		t.Errorf("its second end is accepted: %+v", trial)
	}
}

// A message to a descriptor that is not a pipe would be written into another file.
func TestTellerNeedsPipe(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, fd := range []int{int(f.Fd()), 9999} {
		if _, err := OpenTeller(fd); err == nil {
			t.Errorf("descriptor %d is taken for a pipe", fd)
		}
	}
}

// A self-test that hangs or fails must end the trial of a version with its cause.
func TestSelfTestProblems(t *testing.T) {
	for _, c := range []struct{ script, says string }{
		{"exit 0", ""}, {"echo 'panic: many goroutines' >&2; seq 20000 >&2; exit 2", "the self-test failed: exit status 2: panic: many goroutines"}, {"echo 'panic: oh no' >&2; exit 2", "the self-test failed: exit status 2: panic: oh no"}, {"sleep 1000 & sleep 1000", "took longer than"},
	} {
		found, why, _ := SelfTest(t.Context(), Command{Path: "/bin/sh", Args: []string{"-c", c.script}, Log: slog.New(slog.DiscardHandler)}, 300*time.Millisecond)
		if (found == Good) != (c.says == "") || !strings.Contains(why.String(), c.says) {
			t.Errorf("%s: %s, %v", c.script, found, why)
		}
	}
}

// A shutdown signals all processes in no order: a candidate that exits first must not be dropped.
func TestShutdownThatReachesCandidateFirst(t *testing.T) {
	t.Setenv("CANDIDATE", "shot")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	trial := Watch(ctx, command(calls(func() { time.AfterFunc(stopWait/4, cancel) })), quick())
	if finding, why := Judge(trial); finding != Nothing {
		t.Errorf("%s: %s", finding, why)
	}
	trial = Watch(t.Context(), command(io.Discard), quick())
	if finding, _ := Judge(trial); finding != Bad {
		t.Errorf("killed by another program: %s", finding)
	}
}

// A machine without memory, or a file system that forbids execution, must not drop a good version.
func TestSelfTestOnFaultyMachine(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("\x7fELF of nothing"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]Finding{write("forbidden", 0o644): Nothing, write("foreign", 0o755): Bad} {
		if found, why, _ := SelfTest(t.Context(), Command{Path: path, Log: slog.New(slog.DiscardHandler)}, time.Minute); found != want {
			t.Errorf("%s: %s, %v; want %s", path, found, why, want)
		}
	}
}

// A self-test that hangs after its watcher was killed would run until an operator ends it.
func TestSelfTestDoesNotOutliveWatcher(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env: append(os.Environ(), "CANDIDATE=tester", "FIFO="+fifo), Files: []*os.File{nil, os.Stderr, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	read, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if err := read.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(read, make([]byte, len("hangs\n"))); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(read); err != nil {
		t.Errorf("the self-test still runs: %v", err)
	}
}

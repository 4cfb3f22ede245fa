package nspawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
)

// A guest that writes to its console would fill the host's disk, and all its machines would go with that.
func TestConsolesStaySmall(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "console")
	writer, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Truncate(maxConsole); err != nil {
		t.Fatal(err)
	}
	if err := trim(file, maxConsole, keptConsole); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != maxConsole {
		t.Errorf("what is not too much is trimmed: %v", err)
	}
	if err := writer.Truncate(100 * maxConsole); err != nil { // with holes: it takes no room
		t.Fatal(err)
	}
	fmt.Fprint(writer, "panic\n")
	if last := lastWords(file); strings.Trim(last, "\x00") != "panic" || len(last) > lastConsole {
		t.Errorf("its last words are %d bytes: %.20q", len(last), last)
	}
	if err := trim(file, maxConsole, keptConsole); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(writer, "on")
	if text, err := os.ReadFile(file); err != nil || string(text) != "on" {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if text, err := os.ReadFile(file + consoleSuffix); err != nil || len(text) != keptConsole || !strings.HasSuffix(string(text), "panic\n") {
		t.Errorf("of what was there %d bytes are kept, %v", len(text), err)
	}
}

// A guest that reboots in a loop would take a processor of its host for ever.
func TestAMachineThatRebootsInALoopDoesSoSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		boots, stop := 0, make(chan os.Signal, 1)
		began := time.Now()
		time.AfterFunc(time.Hour, func() { stop <- unix.SIGTERM })
		var second time.Duration
		s := liveBy(stop, func(s *state) (bool, error) {
			if boots++; boots == 2 {
				second = time.Since(began)
			}
			s.State = machines.Running
			<-time.After(time.Second)
			return true, nil
		})
		if boots < 20 || boots > 70 || second != time.Second {
			t.Errorf("in an hour it booted %d times, at first again after %v", boots, second)
		}
		if s.State != machines.Stopped || s.Boots != boots || time.Since(began) != time.Hour {
			t.Errorf("after %v it is %+v", time.Since(began), s)
		}
		if got := pauseAfter(longBoot, longestPause, 50); got != 0 {
			t.Errorf("a machine that is rebooted now and then waits for %v", got)
		}
	})
}

// A full disk would end each machine that reboots.
func TestAMachineOutlivesAStateThatCanNotBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said := 0
		b := booted{
			signal: func(s os.Signal) error { t.Errorf("it is sent %v", s); return nil },
			ended:  make(chan struct{}),
			runs:   func() bool { return true },
		}
		time.AfterFunc(time.Hour, func() { close(b.ended) })
		err := b.attend(nil, func() error {
			if said++; said < 4 {
				return errors.New("no space left on device")
			}
			return nil
		})
		if err != nil || said != 4 {
			t.Errorf("%v, and its state was written %d times", err, said)
		}
	})
}

// A machine that never comes up would be said to be building for ever.
func TestAMachineThatDoesNotComeUpIsKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := booted{ended: make(chan struct{}), runs: func() bool { return false }}
		b.signal = func(s os.Signal) error {
			if s != unix.SIGKILL {
				t.Errorf("it is sent %v", s)
			}
			close(b.ended)
			return nil
		}
		began := time.Now()
		if err := b.attend(nil, nil); err == nil || time.Since(began) != bootDeadline {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

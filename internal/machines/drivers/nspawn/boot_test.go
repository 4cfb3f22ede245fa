package nspawn

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
)

// A guest that reboots in a loop must not keep a processor of its host busy.
func TestRebootLoopSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		boots, stop := 0, make(chan os.Signal, 1)
		began := time.Now()
		time.AfterFunc(time.Hour, func() { stop <- unix.SIGTERM })
		var second time.Duration
		s := liveBy(stop, func(s *folder.State) (bool, error) {
			if boots++; boots == 2 {
				second = time.Since(began)
			}
			s.State = machines.Running
			<-time.After(time.Second)
			return true, nil
		})
		if boots < 20 || boots > 70 || second != time.Second {
			t.Errorf("the machine booted %d times in an hour, the second time after %v", boots, second)
		}
		if s.State != machines.Stopped || s.Boots != boots || time.Since(began) != time.Hour {
			t.Errorf("after %v the machine is %+v", time.Since(began), s)
		}
		if got := pauseAfter(longBoot, longestPause, 50); got != 0 {
			t.Errorf("a machine that reboots rarely waits for %v", got)
		}
	})
}

// A full disk must not end machines.
func TestMachineOutlivesFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := 0
		b := booted{
			signal: func(s os.Signal) error { t.Errorf("the machine got %v", s); return nil },
			ended:  make(chan struct{}),
			runs:   func() bool { return true },
		}
		time.AfterFunc(time.Hour, func() { close(b.ended) })
		err := b.attend(nil, func() error {
			if writes++; writes < 4 {
				return errors.New("no space left on device")
			}
			return nil
		})
		if err != nil || writes != 4 {
			t.Errorf("%v, and %d writes of the state", err, writes)
		}
	})
}

// A machine that does not boot must not stay in the state building.
func TestBootDeadlineKillsMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := booted{ended: make(chan struct{}), runs: func() bool { return false }}
		b.signal = func(s os.Signal) error {
			if s != unix.SIGKILL {
				t.Errorf("the machine got %v", s)
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

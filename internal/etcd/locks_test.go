package etcd

import (
	"testing"
	"time"
)

// A provider's command that is stopped after the loss of the lock may create a machine until it is killed. No other
// apply may begin before that.
func TestLockOutlivesRequestsInFlight(t *testing.T) {
	t.Parallel()
	const inFlight = 5*time.Second + 2*time.Second // a gentle signal, a hard one, and the rest of its output
	asked := time.Now()
	kept := newDeadline(asked, LockLasts)
	if kept.passed(asked.Add(LockLasts / 2)) {
		t.Error("it ends when etcd was silent for half a minute only")
	}
	for _, clock := range []func(time.Time) time.Time{
		func(at time.Time) time.Time { return at },
		func(at time.Time) time.Time { return at.Round(0) }, // by the wall clock: the machine slept
	} {
		last := clock(asked.Add(LockLasts - inFlight - lookEvery)) // the next look is too late
		if !kept.passed(last) {
			t.Errorf("what is in flight has less than %s to end", inFlight)
		}
	}
}

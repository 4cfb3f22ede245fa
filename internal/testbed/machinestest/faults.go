package machinestest

import (
	"errors"
	"time"
)

// Fault is a fault of one call, or of the machine that it makes.
type Fault string

// The faults. A fault that does not apply to a call has no effect.
const (
	None        Fault = ""
	FailBefore  Fault = "fails, and has done nothing"
	FailAfter   Fault = "does it, and its answer is lost"
	CrashBefore Fault = "whoever calls dies before"
	CrashAfter  Fault = "whoever calls dies after"

	Throttle Fault = "asks to wait"                // of a provider's call
	Busy     Fault = "has to wait for the name"    // of a create
	Quota    Fault = "says that the quota is full" // of a create
	Refuse   Fault = "refuses"                     // of a create
	Late     Fault = "does it later, and its answer is lost"
	Twin     Fault = "makes two"
	ErrorEnd Fault = "makes a machine that ends in error"
	LoseIt   Fault = "makes a machine, and loses it"
	NoBoot   Fault = "makes a machine that never joins"
	NoRun    Fault = "makes a machine that joins and never converges"
	Slow     Fault = "takes long"                           // of a delete
	Deaf     Fault = "says that it is done, and forgets it" // of a delete
	HookFail Fault = "its hooks fail"                       // of a request to retire
	HookHang Fault = "its hooks never end"
)

// Faults returns all faults, for random tests.
func Faults() []Fault {
	return []Fault{FailBefore, FailAfter, CrashBefore, CrashAfter, Throttle, Busy, Quota, Refuse, Late, Twin, ErrorEnd, LoseIt, NoBoot, NoRun, Slow, Deaf, HookFail, HookHang}
}

// The durations of machines. Each machine's number varies them.
const (
	buildTakes    = 40 * time.Second
	joinTakes     = 30 * time.Second
	convergeTakes = 70 * time.Second
	answerTakes   = 20 * time.Second
	endTakes      = 15 * time.Second
	slowEndTakes  = 6 * time.Minute
	lateBy        = 45 * time.Second
	speaksEvery   = time.Minute
	busyFor       = 20 * time.Second
)

var (
	errNoAnswer = errors.New("there was no answer")
	errCrashed  = errors.New("this program is dead")
)

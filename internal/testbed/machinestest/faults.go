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
	FailBefore  Fault = "fails without effect"
	FailAfter   Fault = "takes effect, and the answer is lost"
	CrashBefore Fault = "the caller crashes before"
	CrashAfter  Fault = "the caller crashes after"

	Throttle Fault = "throttles"         // of a provider's call
	Busy     Fault = "the name is busy"  // of a create
	Quota    Fault = "the quota is full" // of a create
	Refuse   Fault = "refuses"           // of a create
	Late     Fault = "takes effect later, and the answer is lost"
	MakesTwo Fault = "makes two machines"
	ErrorEnd Fault = "makes a machine that fails"
	LoseIt   Fault = "makes a machine, and loses it"
	NoBoot   Fault = "makes a machine that never joins"
	NoRun    Fault = "makes a machine that joins and never converges"
	Slow     Fault = "takes long"                // of a delete
	Deaf     Fault = "answers, and does nothing" // of a delete
	HookFail Fault = "the hooks fail"            // of a request to retire
	HookHang Fault = "the hooks never end"
)

// Faults returns all faults, for random tests.
func Faults() []Fault {
	return []Fault{FailBefore, FailAfter, CrashBefore, CrashAfter, Throttle, Busy, Quota, Refuse, Late, MakesTwo, ErrorEnd, LoseIt, NoBoot, NoRun, Slow, Deaf, HookFail, HookHang}
}

// The durations of machines. Each machine's number varies them.
const (
	buildTakes     = 40 * time.Second
	joinTakes      = 30 * time.Second
	convergeTakes  = 70 * time.Second
	answerTakes    = 20 * time.Second
	endTakes       = 15 * time.Second
	slowEndTakes   = 6 * time.Minute
	lateBy         = 45 * time.Second
	reportInterval = time.Minute
	busyFor        = 20 * time.Second
)

var (
	errNoAnswer = errors.New("no answer")
	errCrashed  = errors.New("this program has crashed")
)

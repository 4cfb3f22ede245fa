package upgrade

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A lenient judgement installs a broken agent. A strict one keeps the fleet on an old agent.
func TestJudge(t *testing.T) {
	all := []string{"observe", "desire", "decide", "report"}
	for _, c := range []struct {
		name    string
		trial   Trial
		finding Finding
		says    string
	}{
		{"all is well", Trial{Steps: all, Ending: &Ending{}}, Good, ""},
		{"Puppet changed something, told by its exit code", Trial{Steps: all, Ending: &Ending{Code: 2}, Code: 2}, Good, ""},
		{"the kernel can't run it", Trial{Err: &os.PathError{Err: syscall.ENOEXEC}}, Bad, "exec format error"},
		{"there is no memory for it", Trial{Err: &os.PathError{Err: syscall.ENOMEM}}, Nothing, "cannot allocate memory"},
		{"there are too many processes", Trial{Err: &os.PathError{Err: syscall.EAGAIN}}, Nothing, "temporarily"},
		{"nothing may be started where it lies", Trial{Err: &os.PathError{Err: syscall.EACCES}}, Nothing, "permission denied"},
		{"it panics at its start", Trial{Code: 2, Words: "panic: assignment to entry in nil map\n\ngoroutine 1"}, Bad, "never began its tick: panic: assignment to entry in nil map"},
		{"it panics in a step", Trial{Steps: []string{"observe"}, Code: 2, Words: "level=INFO\npanic: oh\n"}, Bad, "in the step observe and did not report the end of its tick: panic: oh"},
		{"it is killed", Trial{Steps: all, Code: -1, Signal: "killed"}, Bad, "killed"},
		{"it is killed after its last word", Trial{Steps: all, Ending: &Ending{}, Code: -1, Signal: "segmentation fault"}, Bad, "segmentation fault"},
		{"it says nothing", Trial{}, Bad, "exited with code 0 and never began its tick"},
		{"it says nothing in the end", Trial{Steps: all}, Bad, "did not report the end of its tick"},
		{"it does not report", Trial{Steps: all[:3], Ending: &Ending{}}, Bad, "etcd has no report of it"},
		{"it ends otherwise than it says", Trial{Steps: all, Ending: &Ending{}, Code: 1}, Bad, "exited with code 1 and had announced another"},
		{"it hangs at its start", Trial{Late: startStep, Limit: time.Minute, Signal: "killed", Code: -1}, Bad, "stood still for 1m0s in the step start"},
		{"it hangs in a step", Trial{Steps: all[:1], Late: "observe", Limit: time.Minute, Signal: "killed", Code: -1}, Bad, "stood still in the step observe for 1m0s"},
		{"it hangs after its last word", Trial{Steps: all, Ending: &Ending{}, Late: endStep, Limit: time.Minute, Code: -1, Signal: "killed"}, Bad, "stood still for 1m0s in the step end"},
		{"it hangs while this agent is told to end", Trial{Steps: all[:1], Late: "observe", Limit: time.Minute, Stopped: true}, Bad, "stood still"},
		{"this agent is told to end", Trial{Steps: all[:1], Stopped: true, Code: -1, Signal: "terminated"}, Nothing, ""},
		{"another run is in progress", Trial{Ending: &Ending{Locked: true}}, Nothing, ""},
		{"etcd does not answer it", Trial{Steps: all, Ending: &Ending{Unreachable: true, Code: 3}, Code: 3}, Reach, "could not reach etcd"},
		{"Puppet fails", Trial{Steps: all, Ending: &Ending{Failed: true, Code: 1}, Code: 1}, Compare, "run of Puppet failed"},
		{"its tick fails", Trial{Steps: all, Ending: &Ending{Problem: "disk full", Code: 1}, Code: 1}, Compare, "disk full"},
	} {
		finding, why := Judge(c.trial)
		if finding != c.finding || !strings.Contains(why.String(), c.says) {
			t.Errorf("%s: %s, %q", c.name, finding, why)
		}
	}
}

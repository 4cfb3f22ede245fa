package puppet

import (
	"strings"
	"testing"
	"time"
)

// A script of a release that hangs or floods its output must not hold up a run, nor fill the memory of the agent.
func TestScriptIsBounded(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, _, err := runScript(t.Context(), "trap '' TERM; echo begin; sleep 60 & wait; sleep 60", t.TempDir(), 200*time.Millisecond)
	if err == nil || err.Error() != "it took longer than 200ms" || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	out, _, err := runScript(t.Context(), "head -c 1000000 /dev/zero | tr '\\0' x", t.TempDir(), time.Minute)
	if err != nil || out != strings.Repeat("x", maxScriptOutput) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// Package conformtest runs the checks of package conform as tests. It is apart from them, as programs must not carry package
// testing; it owns nothing else.
package conformtest

import (
	"testing"

	"pulley/internal/machines/drivers/conform"
)

// Test fails for each check that the driver does not pass. Each is a subtest of its own.
func Test(t *testing.T, config conform.Config) {
	t.Helper()
	err := conform.Run(t.Context(), config, func(r conform.Result) {
		t.Run(r.Check, func(t *testing.T) {
			t.Log("took", r.Took)
			switch {
			case r.Err != nil:
				t.Error(r.Err)
			case r.Skipped != "":
				t.Log("not checked:", r.Skipped)
			}
		})
	})
	if err != nil {
		t.Error(err)
	}
}

//go:build e2e

package cmd_test

import "testing"

// TestSlowScenarios runs the slowest scripts, in the same way as TestScenarios.
func TestSlowScenarios(t *testing.T) {
	t.Parallel()
	play(t, "testdata/slow", setup)
}

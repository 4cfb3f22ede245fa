//go:build e2e

package cmd_test

import "testing"

// TestSlowScenarios runs those that take longest, as TestScenarios runs the others.
func TestSlowScenarios(t *testing.T) {
	t.Parallel()
	play(t, "testdata/slow")
}

//go:build e2e

package cmd_test

import "testing"

// TestSlowScenarios runs those that take ten seconds or more each, as TestScenarios runs the others.
func TestSlowScenarios(t *testing.T) { play(t, "testdata/slow") }

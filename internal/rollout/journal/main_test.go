package journal_test

import (
	"os"
	"testing"

	"pulley/internal/testbed/fleettest"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

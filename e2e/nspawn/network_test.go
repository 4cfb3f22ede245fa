//go:build e2e

package nspawn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The bridge of all machines, in a network namespace that has nothing else.
const (
	bridgeName  = "pulley0"
	networkBits = 16 // 10.77.0.0: .0.x are servers, .1.x machines
)

var lastServer, lastMachine atomic.Int32

func bridge() error {
	for _, args := range []string{
		"link set lo up",
		// With an address of its own: else it is one of its ports', and changes when that machine ends.
		"link add " + bridgeName + " address 02:70:75:6c:6c:65 type bridge",
		"link set " + bridgeName + " up",
		"address add 10.77.255.254/16 dev " + bridgeName, // of nobody: makes the bridge reachable from here
	} {
		if err := ip(args); err != nil {
			return err
		}
	}
	return nil
}

// serverAddress gives the bridge one more address, for a server of this test alone.
func serverAddress(t *testing.T) string {
	t.Helper()
	address := fmt.Sprintf("10.77.0.%d", lastServer.Add(1))
	if err := ip(fmt.Sprintf("address add %s/%d dev %s", address, networkBits, bridgeName)); err != nil {
		t.Fatal(err)
	}
	return address
}

// machineNumber is a number that no other machine of these tests has; it makes its name and address.
func machineNumber() int { return int(lastMachine.Add(1)) }

func ip(args string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run ip %s: %w: %s", args, err, out)
	}
	return nil
}

// ping asks whether a machine's kernel answers on the bridge.
func ping(address string) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "9"), time.Second)
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // an answer: nothing listens there
		return nil
	}
	return err
}

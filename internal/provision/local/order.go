package local

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"pulley/internal/provision"
)

// check refuses what can't be had here. What would be ignored could be taken for granted.
func (p *Provider) check(o provision.Order) error {
	refused := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", provision.ErrRefused, fmt.Sprintf(format, args...))
	}
	_, sized := sizeOf(o.Flavor)
	_, agentErr := exec.LookPath(p.config.Agent)
	switch {
	case !hostnamePattern.MatchString(o.Name):
		return refused("%q is no hostname of one label", o.Name)
	case !sized:
		return refused("the flavor of a local machine is how much it may write, and %q is no size\nuse one such as 512M or 2G, or leave `flavor` away", o.Flavor)
	case o.Image != "":
		return refused("a local machine is a view of this one, and image %q is asked for\nleave `image` away", o.Image)
	case len(o.Networks) > 0:
		return refused("local machines share the network of this one\nleave `networks` away")
	case os.Geteuid() != 0:
		return refused("it needs root\nrun the same command as root, for example with sudo")
	case agentErr != nil:
		return refused("its agent can't be run: %v\nname the program that `make build` makes as `agent` of the provider", agentErr)
	}
	return nil
}

var sizePattern = regexp.MustCompile(`^([1-9][0-9]{0,12})([KMGT]?)$`)

// sizeOf returns how much a machine of a flavor may write; 0 is the default.
func sizeOf(flavor string) (bytes int64, ok bool) {
	if flavor == "" {
		return 0, true
	}
	match := sizePattern.FindStringSubmatch(flavor)
	if match == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(match[1], 10, 64)
	unit := map[string]int64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match[2]]
	if err != nil || n > math.MaxInt64/unit {
		return 0, false
	}
	return n * unit, true
}

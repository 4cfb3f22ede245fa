package local

import (
	"fmt"
	"os"
	"os/exec"

	"pulley/environments"
	"pulley/internal/machines"
)

// check refuses what can't be had here. What would be ignored could be taken for granted.
func (p *Provider) check(o machines.Order) error {
	refused := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", machines.ErrRefused, fmt.Sprintf(format, args...))
	}
	flaw := environments.NotGiven(environments.DriverLocal, o.Flavor, o.Image, o.Networks)
	_, agentErr := exec.LookPath(p.config.Agent)
	switch {
	case !hostnamePattern.MatchString(o.Name):
		return refused("%q is no hostname of one label", o.Name)
	case flaw != nil:
		return refused("%s\n%s", flaw.Problem, flaw.Advice)
	case os.Geteuid() != 0:
		return refused("it needs root\nrun the same command as root, for example with sudo")
	case agentErr != nil:
		return refused("its agent can't be run: %v\nname the program that `make build` makes as `agent` of the provider", agentErr)
	}
	return nil
}

//go:build !linux

package drivers

import (
	"errors"

	"pulley/environments"
	"pulley/internal/machines"
)

var errNotLinux = errors.New("the providers local and nspawn need Linux\nrun the command on a machine with Linux")

// MaybeInit does nothing: this host has no machines.
func MaybeInit() {}

// Process fails: this host has no machines.
func (o Opener) Process(*environments.Environment, string, string) (int, error) {
	return 0, errNotLinux
}

func (o Opener) openHere(environments.Provider, machines.Mark) (Provider, error) {
	return Provider{}, errNotLinux
}

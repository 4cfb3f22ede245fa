//go:build !linux

package main

import (
	"context"
	"errors"

	"pulley/internal/cli"
)

func runDemo(context.Context, cli.Env, bool) error {
	return errors.New("cannot run the demo: its machines need Linux\nrun it on a machine with Linux")
}

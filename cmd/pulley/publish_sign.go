package main

import (
	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// signFlag is --sign-key.
type signFlag struct{ file string }

func (f *signFlag) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "sign-key", "", "SSH key to sign with [PULLEY_SIGN_KEY] (default: not signed)")
}

func (f signFlag) key(e cli.Env) trust.Key {
	if f.file == "" {
		f.file = e.Getenv("PULLEY_SIGN_KEY")
	}
	return trust.Key{File: f.file}
}

func (f signFlag) given(e cli.Env) bool { return f.key(e).File != "" }

// signer is nil without a key.
func (f signFlag) signer(e cli.Env) store.Sign {
	if !f.given(e) {
		return nil
	}
	return f.key(e).Sign
}

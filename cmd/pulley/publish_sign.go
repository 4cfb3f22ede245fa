package main

import (
	"slices"

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

// check says, before anything is read or sent, that there is no file to sign with.
func (f signFlag) check(e cli.Env) error {
	if !f.given(e) {
		return nil
	}
	return f.key(e).Check()
}

func (f signFlag) given(e cli.Env) bool { return f.key(e).File != "" }

// signer is nil without a key.
func (f signFlag) signer(e cli.Env) store.Sign {
	if !f.given(e) {
		return nil
	}
	return f.key(e).Sign
}

// signed returns the fingerprint of the flag's key where it is among those that signed already; "" where it is not, or
// where nobody knows.
func (f signFlag) signed(e cli.Env, signatures []byte) string {
	if len(signatures) == 0 {
		return ""
	}
	own := f.key(e).Fingerprint()
	if slices.ContainsFunc(trust.SignedBy(signatures), func(s trust.Signature) bool { return s.Fingerprint == own }) {
		return own
	}
	return ""
}

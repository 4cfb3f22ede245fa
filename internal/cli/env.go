package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"os/user"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env is everything that a program gets from outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	Terminal       bool // standard output is one
	ErrTerminal    bool // standard error is one
	Width          int  // of the terminal, in columns; 0 when unknown
	User           string
	Version        string // of the program, stamped in at build time
}

// System is the process's own surroundings.
func System(version string) Env {
	e := Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now, Version: version}
	e.ErrTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	if e.Terminal = term.IsTerminal(int(os.Stdout.Fd())); e.Terminal {
		if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
			e.Width = w
		}
	}
	e.User = e.Getenv("SUDO_USER")
	if e.User == "" {
		if u, err := user.Current(); err == nil {
			e.User = u.Username
		}
	}
	return e
}

// Interruptible is a context that the first SIGINT or SIGTERM ends; a second one ends the process at once.
func Interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // gives the signals back their default effect
	return ctx, stop
}

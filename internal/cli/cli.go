// Package cli contains the parts that both commands share at a terminal: a program's environment, its error messages,
// the connection to etcd, and tables.
//
// The rules: results go to standard output, everything else to standard error. An error is one line, "pulley: cannot
// …", and each hint is a line of its own below it. Tables are for people, and -o json is stable. It must never
// decide anything about a fleet.
package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env contains everything that a program receives from outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	Terminal       bool // standard output is a terminal
	ErrTerminal    bool // standard error is a terminal
	Width          int  // of the terminal, in columns; 0 when unknown
	Height         int  // of the terminal, in lines; 0 when unknown
	User           string
	Version        string // of the program, set at build time

	Log        *slog.Logger // receives messages in the place of Stderr, after LogFlags.Open; may be nil
	logsToFile bool
}

// System returns the environment of this process.
func System(version string) Env {
	e := Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: getenv, Now: time.Now, Version: version}
	e.ErrTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	if e.Terminal = term.IsTerminal(int(os.Stdout.Fd())); e.Terminal {
		if w, h, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
			e.Width, e.Height = w, h
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

// getenv is os.Getenv, with the home folder of a process that was started without HOME: systemd starts services like that.
func getenv(name string) string {
	value := os.Getenv(name)
	if name == "HOME" && value == "" {
		if u, err := user.Current(); err == nil {
			return u.HomeDir
		}
	}
	return value
}

// Interruptible returns a context that the first SIGINT or SIGTERM ends. A second signal ends the process immediately.
func Interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // restores the signals' default effect
	return ctx, stop
}

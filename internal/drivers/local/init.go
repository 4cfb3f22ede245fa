package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// The names under which a program runs itself again.
const (
	argInit      = "pulley-machine-init"      // a machine's first process; inherits the life line
	argEnter     = "pulley-machine-enter"     // on the host, for one command; inherits the machine's pidfd
	argSupervise = "pulley-machine-supervise" // in the machine, for one command; inherits the command's life line
	argKeep      = "pulley-machine-keep"      // on the host, for a machine that outlives the program; inherits its folder's lock
)

// inherited is the first descriptor beyond stdio that each of them is given.
const inherited = 3

const exitCannotRun = 125 // a machine's own trouble, not its command's: as in docker and chroot(1)

// setupReply is the first process's answer, once.
type setupReply struct {
	Error string `json:"error"`
}

// MaybeInit must be the first thing that main calls. It returns at once in a program that was started by a user; where
// this package started it as a part of a machine, it is that part and never returns.
func MaybeInit() {
	switch os.Args[0] {
	case argInit, argEnter, argSupervise, argKeep:
		// What else the owner was started with must not go on to the machine's programs.
		_ = unix.CloseRange(inherited, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	}
	switch os.Args[0] {
	case argInit:
		os.Exit(report(runInit())) //nolint:forbidigo // this is the whole program of a part of a machine
	case argEnter:
		os.Exit(report(enter(os.Args[1:]))) //nolint:forbidigo // this is the whole program of a part of a machine
	case argSupervise:
		os.Exit(report(supervise(os.Args[1:]))) //nolint:forbidigo // this is the whole program of a part of a machine
	case argKeep:
		os.Exit(report(runKeeper(os.Args[1:]))) //nolint:forbidigo // this is the whole program of a part of a machine
	}
}

func report(code int, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// runInit is a machine's first process: it sets the machine up and ends with the life line.
func runInit() (int, error) {
	if os.Getpid() != 1 || !isInherited(unix.S_IFSOCK) {
		return exitCannotRun, errors.New("cannot be a machine: not started as one")
	}
	life := os.NewFile(inherited, "life line")
	var config Config
	decoder := json.NewDecoder(life)
	if err := decoder.Decode(&config); err != nil {
		return exitCannotRun, fmt.Errorf("cannot read what machine to be: %w", err)
	}

	// A stray "kill 1" in the machine is no reason to end it.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go reap(children)

	var reply setupReply
	err := setUp(config)
	if err != nil {
		reply.Error = err.Error()
	}
	if err := json.NewEncoder(life).Encode(reply); err != nil || reply.Error != "" {
		return exitCannotRun, nil
	}
	_, _ = io.Copy(io.Discard, life) // ends when the owner closes its end, or dies
	return 0, nil
}

// reap collects the machine's orphans whenever a child has ended. One pending signal stands for any number of children.
func reap(children <-chan os.Signal) {
	for range children {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err != unix.EINTR && pid <= 0 {
				break
			}
		}
	}
}

// isInherited tells whether the inherited descriptor is open and of the given type: someone who runs the program under
// one of the names above by hand has none.
func isInherited(fileType uint32) bool {
	var stat unix.Stat_t
	return unix.Fstat(inherited, &stat) == nil && stat.Mode&unix.S_IFMT == fileType
}

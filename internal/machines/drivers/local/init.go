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
	argRun       = "pulley-machine-run"       // in the machine, for one command; inherits the command's life line
	argSupervise = "pulley-machine-supervise" // on the host, for a machine that outlives the program; inherits its folder's lock
)

// inherited is the first descriptor of each beyond stdio.
const inherited = 3

const exitCannotRun = 125 // an error of the machine and not of its command, as in docker and chroot(1)

// setupReply is the one message of the first process.
type setupReply struct {
	Error string `json:"error"`
}

// MaybeInit must be the first call of main. It returns at once in a program that a user started. In a program that this package
// started as a part of a machine, it never returns.
func MaybeInit() {
	part, ok := map[string]func([]string) (int, error){
		argInit: runInit, argEnter: enter, argRun: runCommand, argSupervise: runSupervisor,
	}[os.Args[0]]
	if !ok {
		return
	}
	// The machine's programs must not inherit other descriptors.
	_ = unix.CloseRange(inherited, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	os.Exit(report(part(os.Args[1:]))) //nolint:forbidigo // this is the complete program of a part of a machine
}

func report(code int, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// runInit is a machine's first process: it sets the machine up and ends with the life line.
func runInit([]string) (int, error) {
	if os.Getpid() != 1 || !isInherited(unix.S_IFSOCK) {
		return exitCannotRun, errors.New("cannot start a machine: this name is for internal use")
	}
	life := os.NewFile(inherited, "life line")
	var config Config
	decoder := json.NewDecoder(life)
	if err := decoder.Decode(&config); err != nil {
		return exitCannotRun, fmt.Errorf("cannot read the configuration of the machine: %w", err)
	}

	// A "kill 1" in the machine must not end it.
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

// reap collects the machine's orphans. One pending signal may stand for several children.
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

// isInherited reports whether the inherited descriptor is open and of the given type. A user who runs the program under one of the
// names above has no such descriptor.
func isInherited(fileType uint32) bool {
	var stat unix.Stat_t
	return unix.Fstat(inherited, &stat) == nil && stat.Mode&unix.S_IFMT == fileType
}

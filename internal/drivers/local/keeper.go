package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/environments"
	"pulley/internal/machines"
)

const (
	keeperPoll     = 20 * time.Millisecond
	bootDeadline   = time.Hour // of one run of a first boot, which may install a lot
	firstPause     = 10 * time.Second
	longestPause   = 5 * time.Minute
	maxLogBytes    = 1 << 20
	agentInMachine = "/usr/local/bin/pulley-agent"
	agentSettings  = "/etc/pulley/agent.yaml"
	userdataInside = "/run/userdata"

	// exitOfNoUse is how a first boot says that another try would end the same (RestartPreventExitStatus of its unit).
	exitOfNoUse = 2
)

// HostState are the host's folders that a fresh machine would not have: a node's memory, and what Puppet left behind.
func HostState() []string {
	return []string{
		"/etc/pulley", "/var/lib/pulley", "/etc/pulley-demo",
		"/etc/puppet", "/etc/puppetlabs", "/etc/facter", "/var/lib/puppet", "/var/cache/puppet", "/opt/puppetlabs/puppet/cache",
	}
}

// runKeeper is the life of a keeper. Its working folder is the machine's.
func runKeeper(args []string) (int, error) {
	if len(args) != 1 || !strings.HasPrefix(args[0], newPrefix) || !isInherited(unix.S_IFREG) {
		return exitCannotRun, errors.New("cannot keep a machine: not started for that")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	unix.Umask(0o077)
	held, talk := os.NewFile(inherited, heldFile), os.NewFile(inherited+1, "who started this")
	var a about
	answer, err := settle(args[0], &a)
	_ = json.NewEncoder(talk).Encode(answer) // to nobody, where who started this was killed meanwhile
	_ = talk.Close()
	if err != nil {
		return 1, err
	}
	k := &keeper{about: a}
	err = writeJSON(stateFile, k.live(held))
	runtime.KeepAlive(held) // who sees it unlocked finds the last word in the state
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// settle locks the folder in a way that says who keeps it, and puts it in its place.
func settle(name string, a *about) (keeperAnswer, error) {
	err := readJSON(aboutFile, a)
	if err == nil {
		err = identify(keeperFile)
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, filepath.Join("..", name), unix.AT_FDCWD, filepath.Join("..", a.Name), unix.RENAME_NOREPLACE)
	}
	if err == nil {
		return keeperAnswer{}, nil
	}
	err = fmt.Errorf("cannot put its folder in its place: %w", err)
	answer := keeperAnswer{Problem: err.Error(), Exists: errors.Is(err, unix.EEXIST)}
	return answer, errors.Join(err, os.RemoveAll(filepath.Join("..", name)))
}

// keeper holds one machine.
type keeper struct {
	about
	machine *Machine
}

// live is the machine's whole life. It returns what to say of it when it has ended.
func (k *keeper) live(held *os.File) said {
	size, _ := environments.LocalSize(k.Flavor)
	m, err := Start(context.Background(), Config{
		Hostname: k.Name, SizeBytes: size, Empty: k.Hidden, Binds: []Bind{{From: k.Agent, To: agentInMachine}}, held: held,
	})
	if err != nil {
		return said{machines.Failed, err.Error()}
	}
	k.machine = m
	k.say(said{State: machines.Running})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go k.trimLog(ctx)
	problem := make(chan string, 1)
	go func() {
		if err := k.boot(ctx); err != nil {
			problem <- err.Error()
		}
	}()
	for {
		select {
		case p := <-problem: // it stays as it is, for whoever wants to know why
			k.say(said{machines.Failed, p})
		case <-m.Ended():
			return said{machines.Stopped, "it ended by itself"}
		}
	}
}

// say tells who lists machines. That it can't be told is in the log, and the machine goes on.
func (k *keeper) say(s said) {
	if err := writeJSON(stateFile, s); err != nil {
		fmt.Fprintf(os.Stderr, "cannot write the state of %s: %v\n", k.Name, err)
	}
}

// boot runs the first boot until it succeeds, and then the agent. It returns when one of them has ended for good.
func (k *keeper) boot(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		again, err := k.firstBoot(ctx)
		if err == nil {
			break
		}
		if !again {
			return err
		}
		fmt.Fprintln(os.Stdout, err)
		k.say(said{machines.Running, err.Error() + "; it is tried again"})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
	if err := os.Remove(userdataFile); err != nil { // it holds a token
		return fmt.Errorf("cannot remove its userdata: %w", err)
	}
	k.say(said{State: machines.Running})
	if _, err := k.machine.ReadFile(agentSettings); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stdout, "its userdata made it no node: no agent is started")
		return nil
	}
	cmd := k.machine.Command(ctx, agentInMachine, "daemon", "--schedule", k.Interval)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return k.ended("its agent", err)
	}
	return errors.New("its agent has ended")
}

// firstBoot gives the machine what a cloud would, and runs it. again says that it may do better another time.
func (k *keeper) firstBoot(ctx context.Context) (again bool, err error) {
	script, err := os.ReadFile(userdataFile)
	if err != nil {
		return false, err
	}
	if err := k.machine.WriteFile(userdataInside, script, 0o700); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	cmd := k.machine.Command(ctx, userdataInside)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	if err := k.machine.removeFile(userdataInside); err != nil { // it holds a token
		fmt.Fprintf(os.Stderr, "cannot remove the userdata in %s: %v\n", k.Name, err)
	}
	if err == nil {
		return false, nil
	}
	code := cmd.ProcessState.ExitCode()
	return code != exitOfNoUse && code != exitNotExecutable && code != exitNotFound, k.ended("its first boot", err)
}

// ended says how a program ended, and its last words.
func (k *keeper) ended(what string, err error) error {
	if found, line := lastLine("."); found {
		return fmt.Errorf("%s ended: %w: %s", what, err, line)
	}
	return fmt.Errorf("%s ended: %w", what, err)
}

// trimLog keeps the log from filling the host's disk.
func (k *keeper) trimLog(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := trim(logFile); err != nil {
			fmt.Fprintf(os.Stderr, "cannot trim the log of %s: %v\n", k.Name, err)
		}
	}
}

// trim moves the end of what a file has to <file>.old, where it has too much. Who writes to it appends, and so goes on at its
// beginning.
func trim(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= maxLogBytes {
		return err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, info.Size()-maxLogBytes, maxLogBytes))
	if err == nil {
		err = os.WriteFile(file+".old", text, 0o600)
	}
	// Emptied in any case: on a full disk this is what makes room.
	return errors.Join(err, os.Truncate(file, 0))
}

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"pulley/environments"
	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
)

const (
	bootDeadline   = time.Hour // of one attempt of a first boot, which installs packages
	firstPause     = 10 * time.Second
	longestPause   = 5 * time.Minute
	maxLogBytes    = 1 << 20
	agentInMachine = "/usr/local/bin/pulley-agent"
	agentSettings  = "/etc/pulley/agent.yaml"
	userdataInside = "/run/userdata"

	// exitFinal is the exit code of a first boot that a retry cannot repair (RestartPreventExitStatus of its unit).
	exitFinal = 2
)

// HostState returns the folders in which nodes and Puppet keep state: a fresh machine does not have those of the host.
func HostState() []string {
	return []string{
		"/etc/pulley", "/var/lib/pulley", "/etc/pulley-demo",
		"/etc/puppet", "/etc/puppetlabs", "/etc/facter", "/var/lib/puppet", "/var/cache/puppet", "/opt/puppetlabs/puppet/cache",
	}
}

// runSupervisor is the main function of a supervisor. Its working folder is the machine's.
func runSupervisor(args []string) (int, error) {
	if len(args) != 1 || !folder.IsNew(args[0]) || !isInherited(unix.S_IFREG) {
		return exitCannotRun, errors.New("cannot supervise a machine: this name is for internal use")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	unix.Umask(0o077)
	held, talk := os.NewFile(inherited, folder.HeldFile), os.NewFile(inherited+1, "starter")
	var a about
	answer, err := settle(args[0], &a)
	_ = json.NewEncoder(talk).Encode(answer) // nobody reads it where the starter was killed
	_ = talk.Close()
	if err != nil {
		return 1, err
	}
	k := &supervisor{about: a}
	err = folder.WriteJSON(folder.StateFile, k.live(held))
	runtime.KeepAlive(held) // when it is unlocked, the last state is written
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// settle takes the lock that names this process, and moves the folder to its place.
func settle(name string, a *about) (supervisorAnswer, error) {
	err := folder.ReadJSON(folder.AboutFile, a)
	if err == nil {
		err = identify(supervisorFile)
	}
	if err == nil {
		err = folder.Place(a.Name, a.ID)
	}
	if err == nil {
		return supervisorAnswer{}, nil
	}
	err = fmt.Errorf("cannot move its folder to its place: %w", err)
	answer := supervisorAnswer{Problem: err.Error(), Exists: errors.Is(err, unix.EEXIST)}
	return answer, errors.Join(err, os.RemoveAll(filepath.Join("..", name)))
}

// supervisor holds one machine.
type supervisor struct {
	about
	machine *Machine
}

// live runs the machine until it ends, and returns its last state.
func (k *supervisor) live(held *os.File) folder.State {
	size, _ := environments.LocalSize(k.Flavor)
	m, err := Start(context.Background(), Config{
		Hostname: k.Name, SizeBytes: size, Empty: k.Hidden, Binds: []Bind{{From: k.Agent, To: agentInMachine}}, held: held,
	})
	if err != nil {
		return folder.State{State: machines.Failed, Problem: err.Error()}
	}
	k.machine = m
	k.write(folder.State{State: machines.Running})
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
		case p := <-problem: // the machine stays, for whoever looks for the cause
			k.write(folder.State{State: machines.Failed, Problem: p})
		case <-m.Ended():
			return folder.State{State: machines.Stopped, Problem: "it ended by itself"}
		}
	}
}

// write saves the state for List. A failure is logged, and the machine continues.
func (k *supervisor) write(s folder.State) {
	if err := folder.WriteJSON(folder.StateFile, s); err != nil {
		fmt.Fprintf(os.Stderr, "cannot write the state of %s: %v\n", k.Name, err)
	}
}

// boot runs the first boot until it succeeds, and then the agent. It returns when one of them fails finally.
func (k *supervisor) boot(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		again, err := k.firstBoot(ctx)
		if err == nil {
			break
		}
		if !again {
			return err
		}
		fmt.Fprintln(os.Stdout, err)
		k.write(folder.State{State: machines.Running, Problem: err.Error() + "; it is retried"})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
	if err := os.Remove(userdataFile); err != nil { // it contains a token
		return fmt.Errorf("cannot remove its userdata: %w", err)
	}
	k.write(folder.State{State: machines.Running})
	if _, err := k.machine.ReadFile(agentSettings); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stdout, "the userdata did not make the machine a node: no agent is started")
		return nil
	}
	cmd := k.machine.Command(ctx, agentInMachine, "daemon", "--schedule", k.Interval)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return k.ended("its agent", err)
	}
	return errors.New("its agent has ended")
}

// firstBoot gives the machine its userdata and runs it. again reports whether a retry may succeed.
func (k *supervisor) firstBoot(ctx context.Context) (again bool, err error) {
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
	if err := k.machine.removeFile(userdataInside); err != nil { // it contains a token
		fmt.Fprintf(os.Stderr, "cannot remove the userdata in %s: %v\n", k.Name, err)
	}
	if err == nil {
		return false, nil
	}
	code := cmd.ProcessState.ExitCode()
	return code != exitFinal && code != exitNotExecutable && code != exitNotFound, k.ended("its first boot", err)
}

// ended returns how a program ended, and the last line of the log.
func (k *supervisor) ended(what string, err error) error {
	if line := folder.LastLine(logFile); line != "" {
		return fmt.Errorf("%s ended: %w: %s", what, err, line)
	}
	return fmt.Errorf("%s ended: %w", what, err)
}

// trimLog keeps the log from filling the host's disk.
func (k *supervisor) trimLog(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := folder.Trim(logFile, maxLogBytes, maxLogBytes); err != nil {
			fmt.Fprintf(os.Stderr, "cannot trim the log of %s: %v\n", k.Name, err)
		}
	}
}

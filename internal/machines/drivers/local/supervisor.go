package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
)

const (
	bootDeadline   = time.Hour // of one attempt of a first boot, which installs packages
	firstPause     = 10 * time.Second
	longestPause   = 5 * time.Minute
	agentInMachine = "/usr/local/bin/pulley-agent"
	agentOfHost    = "/usr/lib/pulley/pulley-agent" // a mount; the machine's agent is a link to it, which an upgrade replaces
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
func runSupervisor([]string) (int, error) {
	unix.Umask(0o077)
	var k supervisor
	if err := folder.Supervise(&k.handover, func(a folder.About) error { k.about = a; return nil }); err != nil {
		return 1, err
	}
	held := os.NewFile(folder.HeldDescriptor, "lock")
	err := folder.WriteJSON(folder.StateFile, k.live(held))
	runtime.KeepAlive(held) // when it is unlocked, the last state is written
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// supervisor holds one machine.
type supervisor struct {
	handover
	about   folder.About
	machine *Machine
}

// live runs the machine until it ends, and returns its last state.
func (k *supervisor) live(held *os.File) folder.State {
	size, _ := environments.LocalSize(k.about.Flavor)
	m, err := Start(context.Background(), Config{
		Hostname: k.about.Name, SizeBytes: size, Empty: k.Hidden, Binds: []Bind{{From: k.Agent, To: agentOfHost}}, held: held,
	})
	if err == nil {
		_, err = m.sh(nil, `mkdir -p "$(dirname "$2")"; ln -sfn "$1" "$2"`, agentOfHost, agentInMachine)
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}
	if err != nil {
		return folder.State{State: machines.Failed, Problem: err.Error()}
	}
	k.machine = m
	k.write(folder.State{State: machines.Running})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	problem := make(chan string, 1)
	go func() {
		if err := k.boot(ctx); err != nil {
			problem <- err.Error()
		}
	}()
	for {
		select {
		case p := <-problem: // the machine stays, so that an operator can find the cause
			k.write(folder.State{State: machines.Failed, Problem: p})
		case <-m.ended:
			return folder.State{State: machines.Stopped, Problem: "it ended by itself"}
		}
	}
}

// write saves the state for List. A failure is logged, and the machine continues.
func (k *supervisor) write(s folder.State) {
	s.Pid = k.machine.Pid()
	if err := folder.WriteJSON(folder.StateFile, s); err != nil {
		fmt.Fprintf(os.Stderr, "cannot write the state of %s: %v\n", k.about.Name, err)
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
	if err := k.machine.WriteFile(userdataInside, k.Userdata, 0o700); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	cmd := k.machine.Command(ctx, userdataInside)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	remove := k.machine.Command(context.WithoutCancel(ctx), "rm", "-f", userdataInside) // it contains a token
	if out, err := remove.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot remove the userdata in %s: %v: %s\n", k.about.Name, err, out)
	}
	if err == nil {
		return false, nil
	}
	code := cmd.ProcessState.ExitCode()
	return code != exitFinal && code != exitNotExecutable && code != exitNotFound, k.ended("its first boot", err)
}

// ended returns how a program ended, and the last line of the log.
func (k *supervisor) ended(what string, err error) error {
	if line := folder.LastLine(folder.LogFile); line != "" {
		return fmt.Errorf("%s ended: %w: %s", what, err, line)
	}
	return fmt.Errorf("%s ended: %w", what, err)
}

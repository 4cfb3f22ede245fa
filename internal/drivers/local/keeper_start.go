package local

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
)

// keeperAnswer is what a keeper says to who started it, once: the machine's folder is in its place, or why not.
type keeperAnswer struct {
	Problem string `json:"problem,omitempty"`
	Exists  bool   `json:"exists,omitempty"` // another keeper was faster
}

// start makes a machine's folder aside and starts a keeper in it, which moves the folder to its place. So there is no machine
// without a keeper, whoever is killed when. When the context ends the keeper goes on.
func (p *Provider) start(ctx context.Context, o machines.Order) error {
	a := about{
		ID: newID(), Owner: p.config.Mark.Owner, Fleet: p.config.Mark.Fleet, Name: o.Name, Node: o.Node, Role: o.Role,
		Flavor: o.Flavor, Labels: o.Labels, Agent: p.config.Agent, Interval: p.config.Interval,
		Hidden: append(HostState(), p.config.Folder), Created: time.Now().UTC().Truncate(time.Second),
	}
	dir := filepath.Join(p.place, newPrefix+a.Name+"."+a.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	held, err := lockFile(filepath.Join(dir, heldFile), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer held.Close() // the keeper has it, too
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, userdataFile), o.Userdata, 0o600),
		writeJSON(filepath.Join(dir, stateFile), said{State: machines.Building}),
		writeJSON(filepath.Join(dir, aboutFile), a))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return launchKeeper(ctx, dir, held)
}

// launchKeeper starts the keeper of a folder and waits until it has put the folder in its place.
func launchKeeper(ctx context.Context, dir string, held *os.File) error {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{argKeep, filepath.Base(dir)}, Dir: dir, Env: []string{},
		Stdout: log, Stderr: log, ExtraFiles: []*os.File{held, theirs},
		SysProcAttr: &unix.SysProcAttr{Setsid: true}, // what ends this program or its terminal is not for the machine
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot start its keeper: %w", err), os.RemoveAll(dir))
	}
	go func() { _ = cmd.Wait() }() // collects it where this program lives longer than the machine
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := io.ReadAll(ours)
	if ctx.Err() != nil {
		return fmt.Errorf("its keeper has not answered yet: %w", ctx.Err())
	}
	var answer keeperAnswer
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		_, why := lastLine(dir)
		return fmt.Errorf("its keeper ended: %w: %s", err, why)
	}
	switch {
	case answer.Exists:
		return nil
	case answer.Problem != "":
		return errors.New(answer.Problem)
	}
	return nil
}

func newID() string {
	id := make([]byte, 8)
	rand.Read(id)
	return fmt.Sprintf("%x", id)
}

// lastLine returns the last line of a log that is not empty.
func lastLine(dir string) (found bool, line string) {
	f, err := os.Open(filepath.Join(dir, logFile))
	if err != nil {
		return false, ""
	}
	defer f.Close()
	const most = 4 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, most))
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); l != "" {
			found, line = true, l
		}
	}
	return found, strings.ToValidUTF8(line, "?")
}

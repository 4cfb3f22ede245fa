package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/drivers/local"
)

const (
	keeperVerb     = "keep"
	keeperDeadline = 15 * time.Second
)

// keeper is a process that owns the demo's folder and removes it when the demo has ended, however it ended.
type keeper struct {
	dir    string
	cmd    *exec.Cmd
	life   *os.File // the keeper reads the other end; the kernel closes this one even after SIGKILL
	errors bytes.Buffer
}

func startKeeper(self string, env []string) (*keeper, error) {
	theirs, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	k := &keeper{life: life}
	k.cmd = exec.Command(self, "demo", keeperVerb)
	k.cmd.Env, k.cmd.Dir, k.cmd.Stdin, k.cmd.Stderr = env, "/", theirs, &k.errors
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of the terminal are for the demo
	out, err := k.cmd.StdoutPipe()
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		life.Close()
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("its folder was not made: %s", strings.TrimSpace(k.errors.String())), k.close())
	}
	k.dir = strings.TrimSuffix(line, "\n")
	return k, nil
}

// close lets the keeper remove the folder, and waits until it has.
func (k *keeper) close() error {
	k.life.Close()
	timer := time.AfterFunc(2*keeperDeadline, func() { k.cmd.Process.Kill() })
	defer timer.Stop()
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("cannot remove the demo's folder: %w: %s\nthe next demo will", err, strings.TrimSpace(k.errors.String()))
	}
	return nil
}

func newDemoKeeper(o *options) *cobra.Command {
	return &cobra.Command{
		Use: keeperVerb, Short: "own the folder of a demo until standard input ends", Hidden: true,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE) // it ends with the demo, and only then
			return keep(filepath.Join(os.TempDir(), "pulley-demo"), o.env.Stdin, o.env.Stdout)
		},
	}
}

// keep makes a folder in base, prints its path, and removes it when life ends. It starts with what demos left behind whose
// keeper was killed too.
func keep(base string, life io.Reader, out io.Writer) error {
	scratch, err := newDemoScratch(base)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, scratch.Dir)
	_, _ = io.Copy(io.Discard, life)
	// The processes that write there die at the same time as the demo, not before it.
	for deadline := time.Now().Add(keeperDeadline); ; {
		if err = scratch.Close(); err == nil || time.Now().After(deadline) {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	removeUnused(base)
	return err
}

func newDemoScratch(base string) (scratch *local.Scratch, err error) {
	for range 3 { // another demo may remove base while this one is making its folder there
		if _, err = local.Sweep(base); err == nil {
			scratch, err = local.NewScratch(base)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return scratch, err
}

// removeUnused removes base when no demo has a folder there. A folder that is not empty can't be removed: so nothing of a
// demo that starts meanwhile is lost.
func removeUnused(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			return
		}
	}
	for _, e := range entries {
		_ = os.Remove(filepath.Join(base, e.Name()))
	}
	_ = os.Remove(base)
}

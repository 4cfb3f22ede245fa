package demo

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

	"pulley/internal/drivers/local"
)

// KeeperVerb is the hidden verb below `pulley demo` that runs Keep.
const KeeperVerb = "keep"

const keeperDeadline = 15 * time.Second

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
	k.cmd = exec.Command(self, "demo", KeeperVerb)
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
		return nil, errors.Join(fmt.Errorf("cannot make its folder: %s", strings.TrimSpace(k.errors.String())), k.close())
	}
	k.dir = strings.TrimSuffix(line, "\n")
	return k, nil
}

// close ends the keeper, and waits until it has removed the folder.
func (k *keeper) close() error {
	k.life.Close()
	timer := time.AfterFunc(2*keeperDeadline, func() { k.cmd.Process.Kill() })
	defer timer.Stop()
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("cannot remove the demo's folder: %w: %s\nthe next demo removes it", err, strings.TrimSpace(k.errors.String()))
	}
	return nil
}

// Keep is the keeper's process: it owns a folder, whose path it prints, until stdin ends.
func Keep(stdin io.Reader, stdout io.Writer) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE) // it ends with the demo, and only then
	return keep(filepath.Join(os.TempDir(), "pulley-demo"), stdin, stdout)
}

// keep makes a folder in base, prints its path, and removes it when life ends. First it removes the folders of demos whose
// keeper was killed too.
func keep(base string, life io.Reader, out io.Writer) error {
	scratch, err := newScratch(base)
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

func newScratch(base string) (scratch *local.Scratch, err error) {
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

// removeUnused removes base when no demo has a folder there. It removes no folder that is not empty: a demo that starts
// meanwhile loses nothing.
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

//go:build e2e

package nspawn

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed image.sh
var imageScript string

const (
	suite         = "bookworm"
	buildDeadline = 15 * time.Minute
)

// image is a Debian to boot machines from: a folder that is only read, and held for as long as the lock is open.
type image struct {
	dir  string
	lock *os.File
}

// openImage returns the image that image.sh makes, and makes it when it is missing. Its name is a digest of how it is
// made, so that a changed script is never tested on an old image. It is there whole or not at all.
func openImage(ctx context.Context) (image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return image{}, fmt.Errorf("cannot find a folder for the image: %w", err)
	}
	cache = filepath.Join(cache, "pulley", "nspawn")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image{}, fmt.Errorf("cannot keep an image: %w", err)
	}
	digest := sha256.Sum256([]byte(suite + "\n" + imageScript))
	dir := filepath.Join(cache, suite+"-"+hex.EncodeToString(digest[:8]))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return image{}, err
	}
	made := image{dir, lock}
	ctx, cancel := context.WithTimeout(ctx, buildDeadline)
	defer cancel()
	if err := flock(ctx, lock, syscall.LOCK_EX); err != nil { // two builds would write into one folder
		return image{}, fmt.Errorf("cannot wait for another build of %s: %w", dir, err)
	}
	if _, err := os.Stat(dir); err != nil {
		fmt.Fprintf(os.Stderr, "making %s, once: about a minute\n", dir)
		if err := build(ctx, dir); err != nil {
			return image{}, err
		}
	}
	if err := flock(ctx, lock, syscall.LOCK_SH); err != nil {
		return image{}, err
	}
	sweep(cache, dir)
	return made, nil
}

// debianMirror is where Debian is installed from: what PULLEY_DEBIAN_MIRROR says, else where this machine's own apt gets it.
func debianMirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("PULLEY_DEBIAN_MIRROR"); mirror != "" {
		return mirror, nil
	}
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask apt for a mirror of Debian: %w", err)
	}
	of := map[string]string{} // by the codename of what is there
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[1] == "main" && !strings.Contains(f[0], "-") && strings.Contains(f[2], "/debian") {
			of[f[0]] = f[2]
			if of[""] == "" {
				of[""] = f[2]
			}
		}
	}
	if mirror := cmp.Or(of[suite], of[""]); mirror != "" {
		return mirror, nil
	}
	return "", errors.New("cannot find a mirror of Debian in apt's sources: name one in PULLEY_DEBIAN_MIRROR")
}

// build makes the image beside where it is to be, and then renames it.
func build(ctx context.Context, dir string) error {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil { // nothing is mounted in it: mounts ended with the build's namespace
		return err
	}
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", imageScript, "image.sh", unfinished, suite, mirror)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make an image of Debian: %w\n%s\nit needs the network; PULLEY_DEBIAN_MIRROR names another mirror than %s", err, tail(string(out), 30), mirror)
	}
	// Flushed before it counts: an image that lost files in a power cut would be kept for ever.
	if out, err := exec.CommandContext(ctx, "sync", "-f", unfinished).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot flush %s: %w: %s", unfinished, err, out)
	}
	return os.Rename(unfinished, dir)
}

// sweep removes images that an older script made, unless somebody boots from them right now.
func sweep(cache, keep string) {
	locks, _ := filepath.Glob(filepath.Join(cache, "*.lock"))
	for _, path := range locks {
		dir := strings.TrimSuffix(path, ".lock")
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if dir == keep || err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
			_ = os.RemoveAll(dir + ".new")
		}
		_ = lock.Close()
	}
}

// flock takes a lock, and gives up when ctx ends.
func flock(ctx context.Context, f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// tail returns the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

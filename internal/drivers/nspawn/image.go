package nspawn

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed image.sh
var imageScript string

const (
	suite         = "bookworm"
	buildDeadline = 15 * time.Minute
)

// Image is a root folder to boot machines from: it is only read, and kept for as long as it is open.
type Image struct {
	Dir  string
	lock *os.File // shared; nil for a folder that somebody else keeps
}

// Close lets go of the image.
func (i Image) Close() error {
	if i.lock == nil {
		return nil
	}
	return i.lock.Close()
}

// OpenImage returns the Debian that image.sh makes, and makes it when it is missing. Its name is a digest of how it is made,
// so that a changed script never meets an old image. It is there whole or not at all.
func OpenImage(ctx context.Context, log *slog.Logger) (Image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Image{}, fmt.Errorf("cannot find a folder for the image: %w", err)
	}
	cache = filepath.Join(cache, "pulley", "nspawn")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Image{}, fmt.Errorf("cannot keep an image: %w", err)
	}
	digest := sha256.Sum256([]byte(suite + "\n" + imageScript))
	dir := filepath.Join(cache, suite+"-"+hex.EncodeToString(digest[:8]))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, buildDeadline)
	defer cancel()
	if err := holdImage(ctx, log, dir, lock); err != nil {
		_ = lock.Close()
		return Image{}, err
	}
	sweepImages(cache, dir)
	return Image{dir, lock}, nil
}

// holdImage returns with the image there and a shared lock on it. Machines hold such a lock for as long as they live, so only
// a build asks for more.
func holdImage(ctx context.Context, log *slog.Logger, dir string, lock *os.File) error {
	for {
		if err := flock(ctx, lock, unix.LOCK_SH); err != nil {
			return fmt.Errorf("cannot wait for another build of %s: %w", dir, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := flock(ctx, lock, unix.LOCK_EX); err != nil { // two builds would write into one folder
			return fmt.Errorf("cannot wait for another build of %s: %w", dir, err)
		}
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		log.Info("making the image of machines, once: about a minute", "folder", dir)
		if err := build(ctx, dir); err != nil {
			return err
		}
	}
}

// build makes the image beside where it is to be, and then renames it.
func build(ctx context.Context, dir string) error {
	if err := need("debootstrap", "unshare"); err != nil {
		return err
	}
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	out, err := pinned(cmd.CombinedOutput)
	if err != nil {
		return fmt.Errorf("cannot make an image of Debian: %w\n%s\nit needs the network; PULLEY_DEBIAN_MIRROR names another mirror than %s", err, tail(string(out), 30), mirror)
	}
	// Flushed before it counts: an image that lost files in a power cut would be kept for ever.
	if out, err := exec.CommandContext(ctx, "sync", "-f", unfinished).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot flush %s: %w: %s", unfinished, err, out)
	}
	return os.Rename(unfinished, dir)
}

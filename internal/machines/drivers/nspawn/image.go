package nspawn

import (
	"cmp"
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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/machines/drivers/folder"
)

//go:embed image.sh
var imageScript string

const (
	suite         = "bookworm"
	buildDeadline = 15 * time.Minute
)

// Image is a root file system from which machines boot. It is read only, and stays for as long as it is open.
type Image struct {
	Dir  string
	lock *os.File // shared; nil for a folder of the user
}

// Close releases the image.
func (i Image) Close() error {
	if i.lock == nil {
		return nil
	}
	return i.lock.Close()
}

// OpenImage returns the Debian that image.sh builds, and builds it where it is missing. Its name has a digest of the script: a
// changed script never uses an old image.
func OpenImage(ctx context.Context, log *slog.Logger) (Image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Image{}, fmt.Errorf("cannot find a folder for the image: %w", err)
	}
	cache = filepath.Join(cache, "pulley", "nspawn")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Image{}, fmt.Errorf("cannot create the folder of the image: %w", err)
	}
	digest := sha256.Sum256([]byte(suite + "\n" + imageScript))
	dir := filepath.Join(cache, suite+"-"+hex.EncodeToString(digest[:8]))
	lock, err := atomicfile.OpenLock(dir + ".lock")
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

// holdImage returns with a built image and a shared lock on it. Machines hold a shared lock while they run: only a build takes an
// exclusive one.
func holdImage(ctx context.Context, log *slog.Logger, dir string, lock *os.File) error {
	for {
		if err := folder.Flock(ctx, lock, unix.LOCK_SH); err != nil {
			return fmt.Errorf("cannot wait for another build of %s: %w", dir, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := folder.Flock(ctx, lock, unix.LOCK_EX); err != nil { // one build at a time
			return fmt.Errorf("cannot wait for another build of %s: %w", dir, err)
		}
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		log.Info("building the image of machines, which takes about a minute", "folder", dir)
		if err := build(ctx, dir); err != nil {
			return err
		}
	}
}

// build makes the image aside, and moves it to its place.
func build(ctx context.Context, dir string) error {
	if err := need("debootstrap", "unshare"); err != nil {
		return err
	}
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil { // it has no mounts: they ended with the namespace of their build
		return err
	}
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		return err
	}
	out := &clip.Tail{Limit: 16 << 10}
	err = child.Command{
		Path: "unshare", Args: []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", imageScript, "image.sh", unfinished, suite, mirror},
		Env: child.WithoutOwn(os.Environ()), Stdout: out, Stderr: out, Bound: true,
	}.Run(ctx)
	if err != nil {
		return fmt.Errorf("cannot build an image of Debian: %w\n%s\ncheck the network, or set PULLEY_DEBIAN_MIRROR to another mirror than %s", err, tail(out.String(), 30), mirror)
	}
	// Flushed before the rename: an image that lost files in a power cut would stay for ever.
	if _, err := output(ctx, "sync", "-f", unfinished); err != nil {
		return fmt.Errorf("cannot flush %s: %w", unfinished, err)
	}
	return os.Rename(unfinished, dir)
}

// output runs a program of this host.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	return child.Command{Path: program, Args: args, Env: child.Filtered(os.Environ())}.Output(ctx, 4<<20)
}

// debianMirror returns the mirror from which Debian is installed: PULLEY_DEBIAN_MIRROR, else that of this host's apt.
func debianMirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("PULLEY_DEBIAN_MIRROR"); mirror != "" {
		return mirror, nil
	}
	out, err := output(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", fmt.Errorf("cannot read a mirror of Debian from apt: %w\nset PULLEY_DEBIAN_MIRROR", err)
	}
	of := map[string]string{} // by codename
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
	return "", errors.New("cannot find a mirror of Debian in the sources of apt\nset PULLEY_DEBIAN_MIRROR")
}

// sweepImages removes the images of older scripts, unless a machine uses them.
func sweepImages(cache, keep string) {
	locks, _ := filepath.Glob(filepath.Join(cache, "*.lock"))
	for _, path := range locks {
		dir := strings.TrimSuffix(path, ".lock")
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if dir == keep || err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
			_ = os.RemoveAll(dir + ".new")
		}
		_ = lock.Close()
	}
}

// need returns an error with the package of a missing program.
func need(programs ...string) error {
	packages := map[string]string{"systemd-nspawn": "systemd-container", "unshare": "util-linux"}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed\non Debian, run: apt-get install %s", program, cmp.Or(packages[program], program))
		}
	}
	return nil
}

// tail returns the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

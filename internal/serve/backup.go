package serve

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/access/fleetca"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/serve/member"
	"pulley/internal/specs"
)

// A backup is a tar archive: etcd's snapshot, then the mark of an authenticated folder, then the files of the CA, then
// an empty file. The CA comes after the snapshot: it knows each CA that the snapshot mentions. Without the last file,
// the backup failed.
const (
	snapshotName = "etcd.db"
	securedName  = "secured"
	completeName = "complete"
)

// maxKeyFile limits a file of the CA in a backup.
const maxKeyFile = 1 << 20

// Backup writes a backup of a data folder and of its etcd. It contains private keys. If etcd has no quorum, old is true:
// the backup may lack etcd's newest writes.
func Backup(ctx context.Context, dir string, st *etcd.DB, now time.Time, out io.Writer) (old bool, err error) {
	snapshot, err := os.CreateTemp(dir, ".backup-") // 0600; the archive needs its size first
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot back up %s: there is no such folder\ngive the data folder of `pulley serve`: --data-dir", dir)
	}
	if err != nil {
		return false, fmt.Errorf("cannot write a snapshot: %w", err)
	}
	defer func() { _ = snapshot.Close() }()
	if err := os.Remove(snapshot.Name()); err != nil { // now: nothing remains of a backup that is killed
		return false, fmt.Errorf("cannot write a snapshot: %w", err)
	}
	// The archive may be on the same disk.
	fits := func(bytes int64) error { return fitsBesideEtcd(dir, 2*bytes) }
	if old, err = cluster.In(st).Snapshot(ctx, fits, snapshot); err != nil {
		return old, err
	}
	size, err := snapshot.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = snapshot.Seek(0, io.SeekStart)
	}
	keys, caErr := pki.ReadFolder(filepath.Join(dir, fleetca.PKIName))
	err = errors.Join(err, caErr)
	archive := tar.NewWriter(out)
	add := func(name string, size int64, from io.Reader) {
		if err == nil {
			err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: now, Format: tar.FormatPAX})
		}
		if err == nil {
			_, err = io.CopyN(archive, from, size)
		}
	}
	add(snapshotName, size, snapshot)
	if member.IsSecured(dir) {
		add(securedName, 0, strings.NewReader("")) // Restore writes its note
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		add(path.Join(fleetca.PKIName, name), int64(len(keys[name])), bytes.NewReader(keys[name]))
	}
	add(completeName, 0, strings.NewReader(""))
	if err == nil {
		err = archive.Close()
	}
	if err != nil {
		return old, fmt.Errorf("cannot write the backup: %w", err)
	}
	return old, nil
}

// Anchored is an environment of a restored etcd, with the epoch that it continues at.
type Anchored struct {
	Environment string `json:"environment"`
	Epoch       int64  `json:"epoch"`
}

// Restore makes a data folder from a backup. The folder must be empty or missing; after an error it is empty again. Each
// environment gets an epoch above the lost ones and a paused gate.
func Restore(ctx context.Context, in io.Reader, c member.SecureConfig, a targets.Author) (anchored []Anchored, err error) {
	if left, err := os.ReadDir(c.Dir); err == nil && len(left) > 0 {
		return nil, fmt.Errorf("cannot restore into %s: the folder is not empty\ngive --data-dir an empty folder", c.Dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot restore: %w", err)
	}
	if err := member.MarkRestoring(c.Dir); err != nil {
		return nil, fmt.Errorf("cannot restore: %w", err)
	}
	made, err := unpack(in, c.Dir)
	if err == nil {
		err = member.Restore(ctx, c, func(ctx context.Context, st *etcd.DB) error {
			// A full etcd's snapshot contains the alarm about missing space.
			if _, _, err := cluster.In(st).Heal(ctx, cluster.TightPercent); err != nil {
				return err
			}
			anchored, err = anchor(ctx, st, a)
			return err
		})
	}
	if err != nil {
		for _, name := range append(made, "etcd", "lock", securedName, member.Restoring) { // the mark last
			if os.RemoveAll(filepath.Join(c.Dir, name)) != nil {
				break
			}
		}
		return nil, err
	}
	return anchored, nil
}

// unpack writes the files of a backup, and accepts no other names. It returns the names in dir that it made.
func unpack(in io.Reader, dir string) (made []string, err error) {
	fail := func(err error) ([]string, error) { return made, fmt.Errorf("cannot read the backup: %w", err) }
	snapshot, complete := false, false
	for archive := tar.NewReader(in); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fail(err)
		}
		to, limit := filepath.Join(dir, h.Name), int64(maxKeyFile)
		complete = h.Name == completeName
		inCA := strings.TrimPrefix(h.Name, fleetca.PKIName+"/")
		switch {
		case h.Typeflag != tar.TypeReg:
			return fail(fmt.Errorf("%q is no file", h.Name))
		case complete:
			continue
		case h.Name == snapshotName:
			to, limit, snapshot = member.Database(dir), h.Size, true
			made = append(made, "etcd")
		case h.Name == securedName:
			made = append(made, securedName)
		case inCA != h.Name && inCA != "" && !strings.HasPrefix(inCA, ".") && filepath.Base(inCA) == inCA:
			made = append(made, fleetca.PKIName)
		default:
			return fail(fmt.Errorf("%q is no file of a backup", h.Name))
		}
		if h.Size > limit {
			return fail(fmt.Errorf("%q is too large", h.Name))
		}
		if err := writeNew(to, io.LimitReader(archive, h.Size)); err != nil {
			return fail(err)
		}
	}
	switch {
	case !complete:
		return fail(errors.New("it is incomplete: `pulley backup` failed, or a copy did"))
	case !snapshot:
		return fail(errors.New("it contains no snapshot of etcd"))
	}
	return made, nil
}

func writeNew(file string, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}

// anchor marks all environments as restored.
func anchor(ctx context.Context, st *etcd.DB, a targets.Author) ([]Anchored, error) {
	names, err := specs.In(st).List(ctx)
	if err != nil {
		return nil, err
	}
	var all []Anchored
	var problems []error
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		epoch, err := targets.In(st).Anchor(ctx, ref, a)
		if err != nil { // the other environments are marked all the same
			problems = append(problems, fmt.Errorf("environment %s: %w", ref, err))
			continue
		}
		all = append(all, Anchored{name, int64(epoch)})
	}
	return all, errors.Join(problems...)
}

package member

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"pulley/internal/access"
	"pulley/internal/atomicfile"
	"pulley/internal/etcd"
)

// pageBytes divides the size of each database of etcd; the checksum at the end of a snapshot does not count.
const pageBytes = 512

// Database is the path of the member's database in a data folder.
func Database(dir string) string { return filepath.Join(dir, "etcd", "member", "snap", "db") }

// Restoring is a file in a data folder that is being restored. Without it, an interrupted restore would leave an etcd
// whose environments have open gates and epochs of the backup.
const Restoring = "restoring"

// MarkRestoring creates a data folder that nothing serves until Restore has finished.
func MarkRestoring(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, Restoring), nil, 0o600)
	}
	return err
}

// Restored refuses a data folder whose restore has not finished.
func Restored(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, Restoring)); err != nil {
		return nil
	}
	return fmt.Errorf("cannot serve %s: `pulley restore` has not finished there\nif it no longer runs, delete the folder, and restore again", dir)
}

// finish removes the mark of a folder whose files are durable.
func finish(dir string) error {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = atomicfile.SyncFolder(path)
		}
		return err
	})
	if err == nil {
		err = os.Remove(filepath.Join(dir, Restoring))
	}
	return errors.Join(err, atomicfile.SyncFolder(dir))
}

// Restore makes the snapshot that the file Database of a new data folder contains the data of its member. It then runs
// the member on a socket in a new private folder, for change alone. The folder is secured if the snapshot has etcd's
// authentication on, also if that etcd was a cluster. At the end it removes the mark of MarkRestoring.
func Restore(ctx context.Context, c SecureConfig, change func(context.Context, *etcd.DB) error) error {
	if err := checkSnapshot(Database(c.Dir)); err != nil {
		return fmt.Errorf("cannot restore etcd: %w", err)
	}
	if err := resetLog(Database(c.Dir)); err != nil {
		return fmt.Errorf("cannot restore etcd: %w", err)
	}
	unlock, err := KeepOut(c.Dir)
	if err != nil {
		return fmt.Errorf("cannot restore etcd: %w", err)
	}
	run, err := makeRun()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make a folder for sockets: %w", err), unlock())
	}
	// Members that are added later get the data from a raft snapshot. Without one, they would get only the new log.
	c.snapshots = true
	s := &Secured{run: run}
	err = s.privately(ctx, c, func(ctx context.Context, st *etcd.DB) error {
		on, err := access.In(st).AuthEnabled(ctx)
		if err == nil && on {
			err = markSecured(c.Dir)
		}
		return errors.Join(err, change(ctx, st))
	})
	if err == nil {
		err = finish(c.Dir)
	}
	return errors.Join(err, os.RemoveAll(run), unlock())
}

// checkSnapshot verifies the checksum that etcd appends to a snapshot, and removes it.
func checkSnapshot(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - sha256.Size
	if size <= 0 || size%pageBytes != 0 {
		return errors.New("the snapshot is incomplete: it has no checksum at its end")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, f, size); err != nil {
		return err
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("the snapshot is damaged: its checksum differs")
	}
	return errors.Join(f.Truncate(size), f.Sync())
}

// resetLog makes the database that of a member whose log is empty: otherwise etcd would skip the first entries of its
// new log, because the database contains the effects of as many old ones. The new log begins with the membership.
func resetLog(path string) error {
	be := backend.NewDefaultBackend(zap.NewNop(), path)
	if err := schema.NewMembershipBackend(zap.NewNop(), be).TrimMembershipFromBackend(); err != nil {
		return errors.Join(err, be.Close())
	}
	tx := be.BatchTx()
	tx.LockOutsideApply()
	tx.UnsafePut(schema.Meta, schema.MetaConsistentIndexKeyName, make([]byte, 8))
	tx.UnsafePut(schema.Meta, schema.MetaTermKeyName, []byte{0, 0, 0, 0, 0, 0, 0, 1})
	tx.Unlock()
	be.ForceCommit()
	return be.Close()
}

// privately runs the member on a socket that only this user can enter, and calls do with an administrator's connection.
func (s *Secured) privately(ctx context.Context, c SecureConfig, do func(context.Context, *etcd.DB) error) error {
	cert, key, err := throwaway(s.run)
	if err != nil {
		return fmt.Errorf("cannot make a certificate for the start: %w", err)
	}
	defer func() { _ = errors.Join(os.Remove(cert), os.Remove(key)) }() // the folder is deleted at the end anyway
	socket := filepath.Join(s.run, "localhost")                         // the server's name in the certificate
	member := c.EtcdConfig
	member.Cert, member.Key, member.CACert, member.Advertise, member.Connections = cert, key, cert, nil, nil
	e, err := member.start(ctx, member.embedded(url.URL{Scheme: "unixs", Path: socket}, s.peers()), func() error { return nil })
	if err != nil {
		return err
	}
	defer e.Close()
	st, err := etcd.Open(etcd.Config{
		Endpoints: []string{"unixs://" + socket}, CACert: cert, Cert: cert, Key: key, Prefix: c.Prefix, Timeout: c.Timeout,
	})
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, st), st.Close())
}

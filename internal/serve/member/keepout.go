package member

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// KeepOut excludes every `pulley serve` from a data folder until release is called. It fails while one serves the
// folder's etcd. It does not notice a serve for another etcd.
func KeepOut(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("`pulley serve` runs on %s", dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

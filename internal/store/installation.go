package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"pulley/internal/store/etcd"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// installationBytes is the length of an installation's ID before hex encoding.
const installationBytes = 8

// installation is the value of the key.
type installation struct {
	ID string    `json:"id"`
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// Installation reads the ID that marks this installation's machines at providers: 16 hex digits, or "" if it does not
// exist yet.
func (s *Cluster) Installation(ctx context.Context) (string, error) {
	key := s.db.Keys.Installation()
	i, _, err := etcd.Single[installation](ctx, s.db, key)
	if err == nil && i != nil && !isHex(i.ID, installationBytes) {
		err = &etcd.UnreadableError{Key: key, Problem: "it is no id of an installation", Next: "machines are known by it: write it as it was before, from a backup"}
	}
	if err != nil {
		return "", fmt.Errorf("cannot read this installation's id: %w", err)
	}
	if i == nil {
		return "", nil
	}
	return i.ID, nil
}

// InstallationID returns the ID and creates it if it is missing. Concurrent callers get the same ID. With etcd
// authentication the creation needs an admin. The setup of users already creates it.
func (s *Cluster) InstallationID(ctx context.Context, by string) (string, error) {
	for {
		id, err := s.Installation(ctx)
		if err != nil || id != "" {
			return id, err
		}
		random := make([]byte, installationBytes)
		if _, err := rand.Read(random); err != nil {
			return "", fmt.Errorf("cannot make this installation's id: %w", err)
		}
		fresh := installation{ID: hex.EncodeToString(random), By: by, At: time.Now().UTC().Truncate(time.Second)}
		_, err = s.db.Replace(ctx, s.db.Keys.Installation(), fresh, 0)
		if err == nil {
			return fresh.ID, nil
		}
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			return "", fmt.Errorf("cannot make this installation's id, by which its machines are known: etcd lets only an admin do that, and not %s\n"+
				"nothing was done; `pulley serve` makes it when it starts, and `pulley doctor --fix` by an admin does where etcd is a cluster of yours", s.db.CallerName)
		}
		if !errors.Is(err, etcd.ErrConflict) {
			return "", fmt.Errorf("cannot write this installation's id: %w", err)
		}
	}
}

// EnsureInstallation creates the ID before the first apply, because an operator may not create it. A damaged ID or a
// full etcd does not stop the rest of the setup: a later apply reports either.
func (s *Cluster) EnsureInstallation(ctx context.Context, by string) error {
	_, err := s.InstallationID(ctx, by)
	if errors.As(err, new(*etcd.UnreadableError)) || errors.Is(err, etcd.ErrFull) {
		return nil
	}
	return err
}

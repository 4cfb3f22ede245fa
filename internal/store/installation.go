package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// installationBytes is how long an installation's id is, before it is hex digits.
const installationBytes = 8

// installation is the value of the key.
type installation struct {
	ID string    `json:"id"`
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// Installation reads by which word providers know this installation's machines: 16 hex digits; "" before the first apply.
func (s *Store) Installation(ctx context.Context) (string, error) {
	key := s.keys.installation()
	i, _, err := single[installation](ctx, s, key)
	if err == nil && i != nil && !isHex(i.ID, installationBytes) {
		err = &UnreadableError{Key: key, Problem: "it is no id of an installation", Next: "machines are known by it: write it as it was before, from a backup"}
	}
	if err != nil {
		return "", fmt.Errorf("cannot read this installation's id: %w", err)
	}
	if i == nil {
		return "", nil
	}
	return i.ID, nil
}

// InstallationID is Installation, and makes the id where there is none: once, whoever asks at the same moment.
func (s *Store) InstallationID(ctx context.Context, by string) (string, error) {
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
		err = s.replace(ctx, s.keys.installation(), fresh, 0)
		if err == nil {
			return fresh.ID, nil
		}
		if !errors.Is(err, ErrConflict) {
			return "", fmt.Errorf("cannot write this installation's id: %w", err)
		}
	}
}

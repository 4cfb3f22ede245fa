package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"pulley/internal/atomicfile"
)

// FloorFormat is the version of trust.json that this program writes; it reads no newer one.
const FloorFormat = 1

// maxFloorBytes is far more than a floor needs.
const maxFloorBytes = 64 << 10

// DamagedError says that a file holds no floor. The node must take nothing new until somebody looked: with an empty floor
// in its place an old release could come back unnoticed.
type DamagedError struct {
	Path  string
	Cause error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("cannot read %s: it is damaged: %v", e.Path, e.Cause)
}

func (e *DamagedError) Unwrap() error { return e.Cause }

// Hint says what to do.
func (e *DamagedError) Hint() string {
	return "it holds the highest release and data that this node attempted, so no new target is taken without it; " +
		"look whether what the node is sent to is right, then remove the file: the next target begins it anew"
}

type floorFile struct {
	V int `json:"v"`
	Floor
}

// LoadFloor reads trust.json; a missing file is an empty floor. One that can't be understood is a *DamagedError.
func LoadFloor(path string) (Floor, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Floor{}, nil
	}
	if err != nil {
		return Floor{}, fmt.Errorf("cannot read what this node attempted: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFloorBytes+1))
	if err != nil {
		return Floor{}, fmt.Errorf("cannot read what this node attempted: %w", err)
	}
	floor, err := parseFloor(b)
	if errors.Is(err, errNewer) {
		return Floor{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if err != nil {
		return Floor{}, &DamagedError{path, err}
	}
	return floor, nil
}

var errNewer = errors.New("its format is newer than this program knows; upgrade pulley here")

func parseFloor(b []byte) (Floor, error) {
	if len(b) > maxFloorBytes {
		return Floor{}, errors.New("it is too large")
	}
	var format struct {
		V int `json:"v"`
	}
	if json.Unmarshal(b, &format) == nil && format.V > FloorFormat { // before all else: what looks damaged may only be newer
		return Floor{}, errNewer
	}
	var file floorFile
	if err := decodeStrictly(b, &file); err != nil {
		return Floor{}, err
	}
	f := file.Floor
	switch {
	case file.V != FloorFormat:
		return Floor{}, errors.New("it does not say its format")
	case f.Data < 0 || f.Permit < 0:
		return Floor{}, errors.New("it has a number below zero")
	case f.Environment == "" && (f.Release != "" || f.Data != 0 || f.Permit != 0):
		return Floor{}, errors.New("it names no environment")
	}
	if _, err := parseVersion(f.Release); err != nil && f.Release != "" {
		return Floor{}, err
	}
	return f, nil
}

// Save writes trust.json; it is durable when Save returns.
func (f Floor) Save(path string) error {
	b, err := json.Marshal(floorFile{FloorFormat, f})
	if err == nil {
		_, err = parseFloor(b) // what could not be read again would stop this node for good
	}
	if err == nil {
		err = atomicfile.Write(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write what this node attempts: %w", err)
	}
	return nil
}

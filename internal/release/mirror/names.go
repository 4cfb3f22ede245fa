package mirror

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pulley/internal/pattern"
	"pulley/internal/release/content"
)

// ErrAbsent is wrapped if a mirror reports that a value does not exist.
var ErrAbsent = errors.New("there is none")

// Lines are named by versions. Names therefore need no escaping, in URLs and as files.
var lineName = pattern.Lazy(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,63}$`)

const (
	contentFolder = "content/"
	deltasFolder  = "deltas/"
	maxSeq        = 999_999_999
)

// ObjectName returns the path of an object below a mirror's base, relative and with slashes.
func ObjectName(hash string) (string, error) {
	if !content.IsHash(hash) {
		return "", fmt.Errorf("%.80q is not a SHA-256 in lower-case hexadecimal", hash)
	}
	return contentFolder + hash, nil
}

// DeltaName returns the path of the delta at a position of a line, below a mirror's base.
func DeltaName(line string, seq int64) (string, error) {
	switch {
	case !lineName().MatchString(line):
		return "", fmt.Errorf("%.80q is not the name of a line: that is a version, like 1.4.0", line)
	case seq < 0 || seq > maxSeq:
		return "", fmt.Errorf("%d is not a position of a line", seq)
	}
	return fmt.Sprintf("%s%s/%09d", deltasFolder, line, seq), nil
}

// name is a parsed ObjectName or DeltaName: either an object or a delta.
type name struct {
	hash string
	line string
	seq  int64
}

var (
	errNoSuchName = errors.New("a mirror has content/<sha256> and deltas/<line>/<position>, and nothing else")
	errMalformed  = errors.New("malformed name")
)

// parseName parses a relative path. It accepts only results of ObjectName and DeltaName.
func parseName(path string) (name, error) {
	if hash, ok := strings.CutPrefix(path, contentFolder); ok {
		if !content.IsHash(hash) {
			return name{}, errMalformed
		}
		return name{hash: hash}, nil
	}
	if rest, ok := strings.CutPrefix(path, deltasFolder); ok {
		line, digits, _ := strings.Cut(rest, "/")
		seq, err := strconv.ParseInt(digits, 10, 64)
		if as, nameErr := DeltaName(line, seq); err != nil || nameErr != nil || as != path {
			return name{}, errMalformed
		}
		return name{line: line, seq: seq}, nil
	}
	return name{}, errNoSuchName
}

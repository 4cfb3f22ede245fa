package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// valueFormat is the version of the values that this program writes. It reads no newer version.
const valueFormat = 1

// Encode writes a value as a JSON object that begins with its format: {"v":1,…}.
func Encode(value any) (string, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode %T: %w", value, err)
	}
	head := fmt.Sprintf(`{"v":%d`, valueFormat)
	if len(b) > 2 {
		head += ","
	}
	return head + string(b[1:]), nil
}

// UnreadableError is the error of a value that is damaged, not Pulley's, or from a newer Pulley.
type UnreadableError struct {
	Key, Problem string
	Next         string // remedy, if it is not obvious

	Newer bool // a newer Pulley wrote it
}

// Hint returns the remedy.
func (e *UnreadableError) Hint() string { return e.Next }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("cannot read key %s: %s", e.Key, e.Problem)
}

// Decode reads the result of Encode. It ignores unknown fields. A newer Pulley must raise the format if older versions
// would misread its values.
func Decode(key string, b []byte, into any) error {
	var head struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return &UnreadableError{Key: key, Problem: "its value is damaged or was not written by pulley: " + err.Error()}
	}
	switch {
	case head.V == nil || !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")):
		return &UnreadableError{Key: key, Problem: "its value was not written by pulley"}
	case *head.V > valueFormat:
		return &UnreadableError{Key: key, Problem: fmt.Sprintf("its format %d is newer than this program's %d; upgrade pulley here", *head.V, valueFormat), Newer: true}
	}
	if err := json.Unmarshal(b, into); err != nil {
		return &UnreadableError{Key: key, Problem: "its value is damaged or was not written by pulley: " + err.Error()}
	}
	return nil
}

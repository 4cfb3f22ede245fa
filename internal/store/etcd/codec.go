package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// valueFormat is the version of the values that this program writes; it reads no newer one.
const valueFormat = 1

// encode writes a value as a JSON object that begins with its format: {"v":1,…}.
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

// UnreadableError is a value in etcd that is damaged, not Pulley's, or from a newer Pulley.
type UnreadableError struct {
	Key, Problem string
	Next         string // what an operator can do, where that is not plain

	Newer bool // a newer Pulley wrote it
}

// Hint says what to do.
func (e *UnreadableError) Hint() string { return e.Next }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("cannot read key %s: %s", e.Key, e.Problem)
}

// decode reads what encode wrote. Fields that it does not know are left out of account: a newer Pulley that writes what
// older ones must not misread raises the format.
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

package environments

import "time"

// Duration is a time.Duration that JSON has as text: "30m0s".
type Duration time.Duration

// String writes d as Go does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes d as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	*d = Duration(read)
	return err
}

package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"pulley/internal/pattern"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"
)

const day = 24 * time.Hour

// inDays is a duration that begins with weeks or days.
var inDays = pattern.Lazy(`^(?:(\d{1,4})w)?(?:(\d{1,5})d)?(.*)$`)

// ParseDuration is time.ParseDuration with weeks and days: 7d, 1w, 1d12h. A day has 24 hours.
func ParseDuration(s string) (time.Duration, error) {
	m := inDays().FindStringSubmatch(s)
	if m == nil || m[1] == "" && m[2] == "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: write it as 90s, 10m, 4h or 7d", s)
		}
		return d, nil
	}
	weeks, _ := strconv.Atoi(m[1]) // "" counts as 0
	days, _ := strconv.Atoi(m[2])
	all := time.Duration(7*weeks+days) * day
	if m[3] == "" {
		return all, nil
	}
	rest, err := time.ParseDuration(m[3])
	if err != nil || rest < 0 {
		return 0, fmt.Errorf("%q is no duration: write it as 90s, 10m, 4h or 7d", s)
	}
	return all + rest, nil
}

// Duration formats a duration as ParseDuration reads it: 4h, 7d, 1d12h.
func Duration(d time.Duration) string {
	if d < 0 || d%time.Second != 0 {
		return d.String()
	}
	text := ""
	if days := d / day; days > 0 {
		text, d = fmt.Sprintf("%dd", days), d%day
	}
	if d == 0 && text != "" {
		return text
	}
	rest := d.String() // like 4h0m0s
	if r, whole := strings.CutSuffix(rest, "m0s"); whole {
		rest = r + "m"
	}
	if r, whole := strings.CutSuffix(rest, "h0m"); whole {
		rest = r + "h"
	}
	return text + rest
}

// DurationVar adds a flag for a duration, in which a day may be a unit.
func DurationVar(f *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	f.Var((*durationValue)(to), name, usage)
}

type durationValue time.Duration

func (v *durationValue) Set(s string) error {
	d, err := ParseDuration(s)
	*v = durationValue(d)
	return err
}
func (v *durationValue) Type() string { return "duration" }
func (v *durationValue) String() string {
	if *v == 0 {
		return "0" // pflag prints no such default
	}
	return Duration(time.Duration(*v))
}

// SizeVar adds a flag for a size in bytes, with or without a unit: 4GiB, 512MiB.
func SizeVar(f *pflag.FlagSet, to *int64, name string, value int64, usage string) {
	*to = value
	f.Var((*sizeValue)(to), name, usage)
}

type sizeValue int64

func (v *sizeValue) Set(s string) error {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > 1<<62 {
		return fmt.Errorf("%q is no size: write it as 512MiB or 4GiB", s)
	}
	*v = sizeValue(n)
	return nil
}
func (v *sizeValue) Type() string { return "size" }
func (v *sizeValue) String() string {
	return strings.ReplaceAll(humanize.IBytes(uint64(*v)), ".0 ", " ")
}

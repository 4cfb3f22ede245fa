package trust

import (
	"errors"
	"strings"
	"time"
)

// parseTime parses the times of OpenSSH's valid-after and valid-before: YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS. The
// time is in UTC if Z or UTC follows, else in loc.
func parseTime(s string, loc *time.Location) (time.Time, error) {
	bad := errors.New("a time is YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with a Z behind it for UTC")
	digits, utc := s, false
	for _, suffix := range []string{"Z", "UTC"} {
		if n := len(s) - len(suffix); n > 0 && strings.EqualFold(s[n:], suffix) {
			digits, utc = s[:n], true
			break
		}
	}
	layout, known := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	if !known || strings.Trim(digits, "0123456789") != "" {
		return time.Time{}, bad
	}
	t, err := time.ParseInLocation(layout, digits, time.UTC)
	if err != nil {
		return time.Time{}, bad
	}
	if !utc {
		t = t.Add(-standardOffset(t, loc))
	}
	if t.Unix() <= 0 { // OpenSSH reads 0 as no time
		return time.Time{}, errors.New("it is not after 1970-01-01 00:00 UTC")
	}
	return t.UTC(), nil
}

// standardOffset returns the offset of loc around a time, without daylight saving time. OpenSSH passes tm_isdst=0 to
// mktime and therefore gets the winter offset even in July. The strides are those of glibc's mktime.
func standardOffset(wall time.Time, loc *time.Location) time.Duration {
	const stride, bound = 601200 * time.Second, 536454000 / 2 * time.Second
	guess := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, loc)
	for far := time.Duration(0); far < bound; far += stride {
		for _, t := range []time.Time{guess.Add(-far), guess.Add(far)} {
			if !t.IsDST() {
				return offset(t)
			}
		}
	}
	return offset(guess)
}

func offset(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// formatTime formats a time with the same meaning on every machine.
func formatTime(t time.Time) string { return t.UTC().Format("20060102150405") + "Z" }

// ParseDate parses a time of a command line: 2027-01-31 (0:00 UTC), RFC 3339, "now", or the OpenSSH format.
func ParseDate(s string, now time.Time) (time.Time, error) {
	if s == "now" {
		return now.UTC().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC().Truncate(time.Second), nil
		}
	}
	t, err := parseTime(s, time.Local)
	if err != nil {
		return t, errors.New("a time is 2027-01-31, 2027-01-31T12:00:00Z or now")
	}
	return t, nil
}

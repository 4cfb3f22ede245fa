package schedule

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var accepted = []string{
	Default, "* * * * *", "0 3 * * 7", "0 3 * * 5-7", "0 3 * * 1-7/2", "0-59/10 8,20 * JAN-MAR mon", "05 00 1 1 0", "0 0 29 2 *", "0 0 30 4,6 *",
	"59 23 31 12 7", "*/90 * * * *", "1,2,3-5 * * * Mon-Fri", "*/5  * * * *", "@hourly", "@midnight", "@yearly",
}

var refused = map[string]string{
	"99 99 * * *": `minute "99": "99" is not from 0 to 59`, "60 * * * *": "minute", "* 24 * * *": "hour", "* * 0 * *": "day of the month",
	"* * 32 * *": "day of the month", "* * * 13 *": "month", "* * * * 8": "day of the week", "* * * *": "4 fields", "": "0 fields", "* * * * * *": "6 fields",
	"*/0 * * * *": "step", "5/10 * * * *": "write 5-59/10", "*/x * * * *": "step", "? * * * *": "minute", "0 ~ * * *": "hour", "1- * * * *": "minute", "-1 * * * *": "minute",
	"+1 * * * *": "minute", "1,,2 * * * *": "minute", "*-5 * * * *": "minute", "001 * * * *": "minute", "* * * janu *": "month", "* * * * sun-sat,x": "day of the week",
	"* * * jan-feb-mar *": "month", "TZ=UTC * * * * *": "6 fields", "*/5 * * * *\n": "day of the week", "*/5 * * * * root": "6 fields", "% * * * *": "minute",
	"*\t* * * *": "4 fields", "@reboot": "is not one of", "@every 5m": "is not one of", "@nonsense": "is not one of", "@": "is not one of",
}

// unlike are wrong in ways that no pattern finds.
var unlike = map[string]string{
	"5-1 * * * *": "ends before it begins", "* * * * fri-sun": "ends before it begins", "0 0 31 2 *": "no year has such a day", "0 0 31 4,6 *": "no year has such a day",
}

// A schedule that cron refuses, or that never comes, makes a node that never runs.
func TestCheckRefusesWhatCronDoesNotStart(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile("^" + Pattern() + "$")
	for _, text := range accepted {
		if err := Check(text); err != nil || !pattern.MatchString(text) {
			t.Errorf("%q: %v, pattern %t", text, err, pattern.MatchString(text))
		}
	}
	for text, want := range refused {
		if err := Check(text); err == nil || !strings.Contains(err.Error(), want) || pattern.MatchString(text) {
			t.Errorf("%q: %v, want %q; pattern %t", text, err, want, pattern.MatchString(text))
		}
	}
	for text, want := range unlike {
		if err := Check(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// An editor that accepts what the parser refuses, or the reverse, is of no use.
func TestPatternAgreesWithCheck(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile("^" + Pattern() + "$")
	part := rapid.StringMatching(`[0-9]{1,2}(-[0-9]{1,2})?(/[0-9]{1,2})?|\*(/[0-9]{1,2})?|jan|Feb|mon|SUN|mon-fri|x`)
	rapid.Check(t, func(t *rapid.T) {
		var words []string
		for range 5 {
			words = append(words, strings.Join(rapid.SliceOfN(part, 1, 2).Draw(t, "field"), ","))
		}
		text := strings.Join(words, " ")
		err := Check(text)
		matches := pattern.MatchString(text)
		if err == nil && !matches || err != nil && matches && !strings.Contains(err.Error(), "ends before it begins") && !strings.Contains(err.Error(), "no year has") {
			t.Fatalf("%q: %v, pattern %t", text, err, matches)
		}
	})
}

// The daemon and cron must start the agent at the same times; the daemon alone has intervals.
func TestDaemonHasIntervalsToo(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{"@every 10s": true, "@every 1h30m": true, "@every": false, "@every 0s": false, "@every -5m": false, "@every 10ms": false, "99 * * * *": false, "@daily": true, Default: true} {
		if s, err := Parse(text); (err == nil) != good || (s != nil) != good {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

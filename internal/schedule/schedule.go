// Package schedule judges the cron schedules that people write: in an environment file, on a command line, in the plan of a
// first boot.
//
// It must never accept a schedule that cron refuses, that cron and pulley-agent daemon read differently, or that never comes.
package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Default is the schedule of an agent without one of its own.
const Default = "*/5 * * * *"

// Like is an example for messages.
const Like = "*/5 * * * *, or @hourly"

// names are the schedules with a name that cron (crontab(5)) and pulley-agent daemon both have. @reboot is none of them: an
// agent that starts at boots only would not run in between.
var names = []string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}

// field is one of the five fields of a schedule (crontab(5)).
type field struct {
	name     string
	min, max int
	words    []string // from min
}

var fields = [5]field{
	{name: "minute", max: 59},
	{name: "hour", max: 23},
	{name: "day of the month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, words: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{name: "day of the week", max: 7, words: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}}, // 7 is Sunday, too
}

// Check returns what is wrong with a schedule of cron: five fields with spaces between them, or a name.
func Check(text string) error {
	if strings.HasPrefix(text, "@") && !slices.Contains(names, text) {
		return fmt.Errorf("%s is not one of %s", text, strings.Join(names, ", "))
	}
	_, err := parse(text)
	return err
}

// Parse reads a schedule of pulley-agent daemon: one of cron, or an interval such as @every 5m.
func Parse(text string) (cron.Schedule, error) {
	if rest, ok := strings.CutPrefix(text, "@every "); ok {
		if d, err := time.ParseDuration(rest); err != nil || d < time.Second {
			return nil, fmt.Errorf("%q is not a duration of at least one second, such as 5m", rest)
		}
		return cron.ParseStandard(text)
	}
	if err := Check(text); err != nil {
		return nil, err
	}
	return parse(text)
}

// lastYear is the last year in which Longest looks for the longest pause, from 2001 on: it has a leap day.
const lastYear = 2004

// Longest returns the longest time between two ticks of a schedule; 0 for none that Parse reads.
func Longest(text string) (gap time.Duration) {
	s, err := Parse(text)
	if err != nil {
		return 0
	}
	at := s.Next(time.Date(2000, 12, 31, 23, 59, 59, 0, time.UTC))
	if _, every := s.(cron.ConstantDelaySchedule); every {
		return s.Next(at).Sub(at)
	}
	const day = 24 * time.Hour
	last := at // of its day: each day with ticks has them at the same times
	for next := s.Next(at); next.Truncate(day).Equal(at.Truncate(day)); next = s.Next(next) {
		gap, last = max(gap, next.Sub(last)), next
	}
	for late := last.Sub(last.Truncate(day)); !at.IsZero() && at.Year() <= lastYear; {
		midnight := at.Truncate(day)
		if at = s.Next(midnight.Add(day - time.Second)); !at.IsZero() {
			gap = max(gap, at.Sub(midnight.Add(late)))
		}
	}
	return gap
}

// parse reads five fields or a name.
func parse(text string) (cron.Schedule, error) {
	if !strings.HasPrefix(text, "@") {
		words := strings.Split(text, " ")
		words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
		if len(words) != len(fields) {
			return nil, fmt.Errorf("it has %d fields, and a schedule of cron has 5", len(words))
		}
		for i, f := range fields {
			var err error
			if words[i], err = f.read(words[i]); err != nil {
				return nil, fmt.Errorf("%s %q: %w", f.name, words[i], err)
			}
		}
		text = strings.Join(words, " ")
	}
	s, err := cron.ParseStandard(text)
	if err != nil {
		return nil, err
	}
	if s.Next(time.Date(2000, time.March, 1, 0, 0, 0, 0, time.UTC)).IsZero() { // leap days come at least once in five years from here
		return nil, errors.New("it never occurs: no year has such a day")
	}
	return s, nil
}

// read checks one field as cron reads it, and returns it as robfig/cron does: the words as numbers, and Sunday always as 0.
func (f field) read(text string) (string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(part, "/")
		if n, err := number(step); stepped && (err != nil || n == 0) {
			return text, fmt.Errorf("%q is not a step such as */5", part)
		}
		if span == "*" {
			out = append(out, part)
			continue
		}
		from, to, ranged := strings.Cut(span, "-")
		if stepped && !ranged {
			return text, fmt.Errorf("%q has a step without a range: write %s-%d/%s", part, from, f.max, step) // crons disagree
		}
		first, err := f.value(from)
		last := first
		if err == nil && ranged {
			last, err = f.value(to)
		}
		switch {
		case err != nil:
			return text, err
		case last < first:
			return text, fmt.Errorf("the range %s ends before it begins", span)
		}
		out = append(out, f.expand(first, last, step))
	}
	return strings.Join(out, ","), nil
}

// expand writes a range in numbers that robfig/cron has.
func (f field) expand(first, last int, step string) string {
	by, _ := strconv.Atoi(step)
	if last < 7 || f.max != 7 {
		text := fmt.Sprintf("%d-%d", first, last)
		if by > 0 {
			text += "/" + step
		}
		return text
	}
	var days []string
	for day := first; day <= last; day += max(by, 1) {
		days = append(days, strconv.Itoa(day%7))
	}
	return strings.Join(days, ",")
}

// value reads a number or a word of the field.
func (f field) value(text string) (int, error) {
	if i := slices.Index(f.words, strings.ToLower(text)); i >= 0 {
		return f.min + i, nil
	}
	n, err := number(text)
	if err != nil || n < f.min || n > f.max {
		return 0, fmt.Errorf("%q is not from %d to %d", text, f.min, f.max)
	}
	return n, nil
}

// number reads at most two plain digits: no field of cron needs more.
func number(text string) (int, error) {
	if text == "" || len(text) > 2 || strings.Trim(text, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.Atoi(text)
}

// Pattern is a regular expression, for schemas and for types of Puppet, without its anchors: it matches all that Check
// accepts, and refuses all that it refuses but ranges that end before they begin, and days that no year has.
func Pattern() string {
	value := [5]string{
		"[0-5]?[0-9]",
		"([01]?[0-9]|2[0-3])",
		"(0?[1-9]|[12][0-9]|3[01])",
		"(0?[1-9]|1[0-2]|" + anyCase(fields[3].words) + ")",
		"(0?[0-7]|" + anyCase(fields[4].words) + ")",
	}
	const step = "(/(0?[1-9]|[1-9][0-9]))?"
	var all []string
	for _, v := range value {
		item := `(\*` + step + "|" + v + "(-" + v + step + ")?)"
		all = append(all, item+"(,"+item+")*")
	}
	return "(@(" + strings.ReplaceAll(strings.Join(names, "|"), "@", "") + ")|" + strings.Join(all, " +") + ")"
}

// anyCase matches words in upper and lower case, without flags: JSON Schema has none.
func anyCase(words []string) string {
	var all []string
	for _, w := range words {
		one := ""
		for _, letter := range w {
			one += "[" + strings.ToUpper(string(letter)) + string(letter) + "]"
		}
		all = append(all, one)
	}
	return strings.Join(all, "|")
}

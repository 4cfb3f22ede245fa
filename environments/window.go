package environments

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/model"
)

// Window is a time of the week in which staged rollouts begin nodes, by the wall clock of a time zone.
type Window struct {
	days     [7]bool // on which it opens, from Sunday
	from, to int     // minutes of the day; to <= from: it ends on the next day
	zone     *time.Location
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// windows has the parsed windows by their text: loading a time zone reads files.
var windows sync.Map

// ParseWindow parses "mon-fri 22:00-04:00 Europe/Berlin". Days are ranges and lists of days, or daily.
func ParseWindow(text string) (Window, error) {
	if known, ok := windows.Load(text); ok {
		return known.(Window), nil
	}
	w, flaw := parseWindow(text)
	if flaw != nil {
		return Window{}, flaw
	}
	windows.Store(text, w)
	return w, nil
}

const windowLike = "write it like mon-fri 22:00-04:00 Europe/Berlin"

func parseWindow(text string) (w Window, flaw *model.Error) {
	parts := strings.Split(text, " ")
	if !forms()["window"].matches.MatchString(text) || len(parts) != 3 {
		return w, &model.Error{Problem: "it is not days, hours and a time zone", Advice: windowLike}
	}
	for days := range strings.SplitSeq(parts[0], ",") {
		first, last, ranged := strings.Cut(days, "-")
		from, to := slices.Index(weekdays, first), slices.Index(weekdays, last)
		switch {
		case days == "daily":
			from, to = 0, 6
		case !ranged:
			to = from
		}
		for day := from; ; day = (day + 1) % 7 {
			if w.days[day] = true; day == to {
				break
			}
		}
	}
	from, to, _ := strings.Cut(parts[1], "-")
	if w.from, w.to = minuteOf(from), minuteOf(to); w.from == w.to {
		return w, &model.Error{Problem: "it ends when it begins", Advice: "a whole day is 00:00-24:00"}
	}
	zone, err := time.LoadLocation(parts[2])
	if err != nil || parts[2] == "Local" {
		return w, &model.Error{Problem: fmt.Sprintf("there is no time zone %s", model.Quoted(parts[2])), Advice: "write the name of a zone of the IANA database, like UTC or Europe/Berlin"}
	}
	w.zone = zone
	return w, nil
}

// minuteOf returns the minute of the day of "15:04".
func minuteOf(text string) int {
	var hours, minutes int
	_, _ = fmt.Sscanf(text, "%d:%d", &hours, &minutes) // the form is checked
	return hours*60 + minutes
}

// Open reports whether the window is open at a time. Where the clock is set forward, it has no minutes that the day lacks; where it is
// set back, it has those that the day repeats twice.
func (w Window) Open(at time.Time) bool {
	local := at.In(w.zone)
	minute, day := local.Hour()*60+local.Minute(), int(local.Weekday())
	if w.from < w.to {
		return w.days[day] && w.from <= minute && minute < w.to
	}
	return w.days[day] && w.from <= minute || w.days[(day+6)%7] && minute < w.to
}

// furthest is how far NextWindow looks: a weekly window may miss one week, when the clock is set forward.
const furthest = 15 * 24 * time.Hour

// NextWindow returns when one of several windows is open: at itself if one is open then. It is zero if none opens soon.
func NextWindow(all []Window, at time.Time) time.Time {
	open := func(t time.Time) bool { return slices.ContainsFunc(all, func(w Window) bool { return w.Open(t) }) }
	if open(at) {
		return at
	}
	for t := at.Truncate(time.Minute).Add(time.Minute); t.Before(at.Add(furthest)); t = t.Add(time.Minute) {
		if open(t) {
			return t
		}
	}
	return time.Time{}
}

package environments

import (
	"testing"
	"time"
)

// A window that opens an hour early restarts services during the day.
func TestWindows(t *testing.T) {
	for _, c := range []struct{ window, at, want string }{
		{"mon-fri 09:00-17:00 Europe/Berlin", "2026-11-23T07:59:59Z", "2026-11-23T08:00:00Z"}, // a Monday
		{"mon-fri 09:00-17:00 Europe/Berlin", "2026-11-23T08:00:00Z", "open"},
		{"mon-fri 09:00-17:00 Europe/Berlin", "2026-11-23T15:59:59Z", "open"},
		{"mon-fri 09:00-17:00 Europe/Berlin", "2026-11-23T16:00:00Z", "2026-11-24T08:00:00Z"},
		{"mon-fri 09:00-17:00 Europe/Berlin", "2026-11-27T16:00:00Z", "2026-11-30T08:00:00Z"}, // over the weekend
		{"fri 22:00-04:00 America/New_York", "2026-11-28T08:59:00Z", "open"},                  // Saturday 03:59
		{"fri 22:00-04:00 America/New_York", "2026-11-28T09:00:00Z", "2026-12-05T03:00:00Z"},
		{"fri-mon 00:00-24:00 UTC", "2026-11-22T12:00:00Z", "open"}, // a Sunday, over the end of the week
		{"fri-mon 00:00-24:00 UTC", "2026-11-24T00:00:00Z", "2026-11-27T00:00:00Z"},
		{"sat,sun 10:00-11:00 UTC", "2026-11-23T00:00:00Z", "2026-11-28T10:00:00Z"},

		// 2026-03-29 in Berlin: 02:00 becomes 03:00.
		{"daily 01:30-03:30 Europe/Berlin", "2026-03-29T00:29:00Z", "2026-03-29T00:30:00Z"},
		{"daily 01:30-03:30 Europe/Berlin", "2026-03-29T01:29:00Z", "open"}, // 03:29, after one hour
		{"daily 01:30-03:30 Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-29T23:30:00Z"},
		{"daily 02:15-02:45 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:15:00Z"}, // the day has no such minutes
		{"sun 02:15-02:45 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-04-05T00:15:00Z"},
		{"daily 09:00-10:00 Europe/Berlin", "2026-03-29T06:59:00Z", "2026-03-29T07:00:00Z"},

		// 2026-10-25 in Berlin: 03:00 becomes 02:00.
		{"daily 01:30-03:30 Europe/Berlin", "2026-10-24T23:29:00Z", "2026-10-24T23:30:00Z"},
		{"daily 01:30-03:30 Europe/Berlin", "2026-10-25T02:29:00Z", "open"}, // 03:29, after three hours
		{"daily 01:30-03:30 Europe/Berlin", "2026-10-25T02:30:00Z", "2026-10-26T00:30:00Z"},
		{"daily 02:00-02:30 Europe/Berlin", "2026-10-25T00:29:00Z", "open"}, // 02:29 for the first time
		{"daily 02:00-02:30 Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"},
		{"daily 02:00-02:30 Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-26T01:00:00Z"},
		{"daily 09:00-10:00 Europe/Berlin", "2026-10-25T07:59:00Z", "2026-10-25T08:00:00Z"},
	} {
		w, err := ParseWindow(c.window)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		next := NextWindow([]Window{w}, at)
		got := next.UTC().Format(time.RFC3339)
		if next.Equal(at) {
			got = "open"
		}
		if got != c.want || w.Open(at) != (c.want == "open") {
			t.Errorf("%s at %s: %s, want %s", c.window, c.at, got, c.want)
		}
	}
}

// The next window is that of the first that opens.
func TestNextOfSeveralWindows(t *testing.T) {
	a, _ := ParseWindow("sat 10:00-11:00 UTC")
	b, _ := ParseWindow("tue 03:00-04:00 Asia/Tokyo")
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	if got := NextWindow([]Window{a, b}, at); !got.Equal(time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)) {
		t.Error(got)
	}
}

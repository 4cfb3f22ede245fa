package publish

import (
	"testing"
	"time"

	"pulley/internal/content"
	"pulley/internal/store"
)

// A hotfix must not be built on a later release, because nodes with the old release could not use its delta. It must
// not use a taken position, because it could not be published.
func TestParentIsTheReleaseBelow(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	release := func(version, line string, seq int64, hour int) store.SignedRelease {
		return store.SignedRelease{Release: store.Release{Version: version, At: at.Add(time.Duration(hour) * time.Hour),
			Content: content.Record{Chain: content.Chain{Line: line, Seq: seq}}}}
	}
	all := []store.SignedRelease{
		release("1.0.0", "1.0.0", 0, 0), release("1.2.0", "1.0.0", 1, 1), release("1.10.0", "1.0.0", 2, 2),
		release("2.0.0-rc1", "2.0.0-rc1", 0, 4), release("2.0.0", "2.0.0-rc1", 1, 3),
	}
	for version, want := range map[string]struct {
		parent string
		last   bool
	}{
		"1.2.1": {"1.2.0", false}, "1.10.1": {"1.10.0", true}, "1.9.0": {"1.2.0", false}, "3.0.0": {"2.0.0", true},
		"2.0.0": {"2.0.0-rc1", false}, "0.1.0": {"2.0.0-rc1", false}, "1.0.0": {"2.0.0-rc1", false},
	} {
		parent, last := parentOf(version, all)
		if parent == nil || parent.Version != want.parent || last != want.last {
			t.Errorf("%s: %v, last %t; want %s, %t", version, parent, last, want.parent, want.last)
		}
	}
	if parent, _ := parentOf("1.0.0", nil); parent != nil {
		t.Errorf("of nothing: %v", parent)
	}
}

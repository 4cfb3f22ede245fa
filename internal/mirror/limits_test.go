package mirror_test

import (
	"testing"

	"pulley/internal/content"
	"pulley/internal/mirror"
)

var _ content.Source = (*mirror.Client)(nil)

// The two limits are one: a mirror that refuses what a publisher stored would never be of use.
func TestMirrorTakesWhatIsPublished(t *testing.T) {
	if mirror.MaxBytes != content.MaxStored {
		t.Errorf("a mirror takes %d bytes, a publisher stores %d", mirror.MaxBytes, content.MaxStored)
	}
}

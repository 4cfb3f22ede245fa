package mirror_test

import (
	"testing"

	"pulley/internal/content"
	"pulley/internal/mirror"
)

var _ content.Source = (*mirror.Client)(nil)

// The two limits must be equal. A mirror that refuses valid objects would be useless.
func TestMirrorTakesWhatIsPublished(t *testing.T) {
	if mirror.MaxBytes != content.MaxStored {
		t.Errorf("a mirror takes %d bytes, a publisher stores %d", mirror.MaxBytes, content.MaxStored)
	}
}

package targets

import (
	"strings"
	"testing"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
)

// Decode returns an error that names the key, or a value. It never panics.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"v":1}`, `{"v":2}`, `{"v":1,"release":"1.0.0","tree":"x","data":3}`, `null`, `[]`, ``, `{"v":"1"}`, `{"v":1,"data":1e400}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, into := range []any{&model.Target{}, &model.Gate{}, &model.Hold{}, &model.Host{}, &model.Status{}, &model.Assignment{}, &Change{}, &release.Release{}} {
			if err := etcd.Decode("k", b, into); err != nil && !strings.Contains(err.Error(), "cannot read key k") {
				t.Errorf("%T: %v", into, err)
			}
		}
	})
}

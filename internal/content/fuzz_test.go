package content

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// Whatever a store hands out: no panic, and nothing is accepted that breaks a rule or has a second spelling.
func FuzzDecodeManifest(f *testing.F) {
	f.Add(string(mustRead(f, golden.make(f)).Encode()))
	f.Add(string(mustRead(f, whole().make(f)).Encode()))
	for _, c := range forbidden() {
		if len(c.entries) < 100 {
			f.Add(string((&Manifest{c.entries}).Encode()))
		}
	}
	f.Fuzz(func(t *testing.T, encoded string) {
		m, err := DecodeManifest(encoded)
		if err != nil {
			return
		}
		if string(m.Encode()) != encoded {
			t.Error("a second spelling of the same manifest was accepted")
		}
		if err := checkEntries(m.Entries); err != nil {
			t.Error(err)
		}
	})
}

// Even bytes whose hash fits can't make a node allocate more than was declared, or take what follows the frame.
func FuzzDecodePack(f *testing.F) {
	good := slices.Clip(encode(f, "hello, hello, hello, hello"))
	f.Add(good, int64(26))
	f.Add(append(good, 0), int64(26))
	f.Add(append(good, good...), int64(52))
	f.Add(encode(f, noise(1, 2000)+strings.Repeat("ab", 500)), int64(3000))
	u, err := newUnpacker()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, stored []byte, raw int64) {
		got, err := u.unpack(stored, raw)
		if err != nil {
			return
		}
		if int64(len(got)) != raw || cap(got) > maxRaw {
			t.Errorf("%d bytes, room for %d, %d were declared", len(got), cap(got), raw)
		}
		if _, err := u.unpack(append(stored, 0), raw); err == nil {
			t.Error("a trailing byte was accepted")
		}
	})
}

// A record that passes its check can be planned with: its sums are within the caps.
func FuzzDecodeRecord(f *testing.F) {
	r, _ := publish(f, golden)
	b, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if json.Unmarshal(b, &r) != nil || r.Check() != nil {
			return
		}
		raw, stored, err := sumObjects(append(r.Manifest, r.Packs...))
		if err != nil || raw < 0 || raw > maxManifestBytes+MaxTreeBytes || stored != r.Stored {
			t.Errorf("%d raw, %d stored, %v", raw, stored, err)
		}
	})
}

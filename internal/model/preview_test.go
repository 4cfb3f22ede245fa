package model

import (
	"fmt"
	"strings"
	"testing"
)

// One node's answer must not fill etcd, and a hostile one must not fill the memory of an operator.
func TestPreviewIsBounded(t *testing.T) {
	t.Parallel()
	random := func(i, n int) string { return strings.Repeat(Digest(fmt.Append(nil, i)), n/64+1)[:n] }
	p := Preview{Order: "1", Node: "web1", Left: -5}
	for i := range 3000 {
		p.Changes = append(p.Changes, ResourceEvent{
			Resource: "File[/" + random(i, 100) + "]", Status: "noop", Diff: random(-i, 1<<14), Messages: []string{random(i, 1000)},
			Properties: []PropertyChange{{"content", random(i, 2000), "\x1b[2J\xff"}},
		})
	}
	b, err := EncodePreview(p)
	if err != nil || len(b) > maxPreviewBytes {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	back, err := DecodePreview(b)
	if err != nil || len(back.Changes) < 50 || back.Left+len(back.Changes) != 3000 || !back.Changes[0].Cut || len(back.Changes[0].Diff) > maxDiff {
		t.Fatalf("%d changes, %d left: %v", len(back.Changes), back.Left, err)
	}
	hostile := Preview{Changes: make([]ResourceEvent, 200_000)}
	packed, err := pack(storedPreview{previewFormat, hostile})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodePreview(packed); err == nil {
		t.Error("an answer that unpacks to more than 1 MiB is accepted")
	}
	hostile.Changes = make([]ResourceEvent, 20_000)
	packed, _ = pack(storedPreview{previewFormat, hostile})
	if got, err := DecodePreview(packed); err != nil || len(got.Changes) != maxChanges {
		t.Errorf("%d changes: %v", len(got.Changes), err)
	}
	packed, _ = pack(storedPreview{previewFormat + 1, hostile})
	if _, err := DecodePreview(packed); err == nil || !strings.Contains(err.Error(), "upgrade pulley") {
		t.Errorf("a newer format: %v", err)
	}
}

func FuzzDecodePreview(f *testing.F) {
	b, err := EncodePreview(Preview{Order: "1", Changes: []ResourceEvent{{Resource: "File[/a]", Diff: "--- a"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePreview(b)
		if err == nil && (len(p.Changes) > maxChanges || p.Left < 0) {
			t.Errorf("%d changes, %d left", len(p.Changes), p.Left)
		}
	})
}

package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
)

// View is a release in a Source: the manifest of its tree and the places of its contents.
type View struct {
	record   Record
	manifest *Manifest
	supply   supply
}

// OpenView reads the index and manifest of a release's base, and the deltas after it. It reads no file contents.
func OpenView(ctx context.Context, src Source, r Record) (*View, error) {
	v, err := openView(ctx, src, r)
	if err != nil {
		return nil, fmt.Errorf("cannot read release tree %s: %w", r.Tree, err)
	}
	return v, nil
}

func openView(ctx context.Context, src Source, r Record) (*View, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	x, m, err := fetchBase(ctx, src, r.Base)
	if err != nil {
		return nil, err
	}
	at, err := x.places(m)
	if err != nil {
		return nil, err
	}
	v := &View{record: r, supply: supply{src: src, index: x, at: at}}
	v.supply.steps, v.manifest, err = fetchSteps(ctx, src, r, Chain{Seq: r.Base.Seq, Stored: r.Base.Deltas}, m)
	return v, err
}

// Manifest returns the manifest of the release's tree. The caller must not change it.
func (v *View) Manifest() *Manifest { return v.manifest }

// contents reads the contents of the given entries and returns them by hash.
func (v *View) contents(ctx context.Context, wanted []Entry) (map[[sha256.Size]byte][]byte, error) {
	contents := map[[sha256.Size]byte][]byte{emptyHash: {}}
	var missing []Entry
	for _, e := range wanted {
		if e.Size > 0 {
			missing = append(missing, e)
		}
	}
	err := v.supply.each(ctx, missing, func(e Entry, r io.Reader) error {
		b, err := readContent(e, r)
		contents[e.Hash] = b
		return err
	})
	return contents, err
}

// ReadFiles returns the contents, by path, of the files for which want returns true. It installs nothing and fetches
// only the packs that hold these files. A link to a file counts as a file. Files behind a link to a folder are found
// only under their own path.
func ReadFiles(ctx context.Context, src Source, r Record, want func(path string) bool) (map[string][]byte, error) {
	v, err := OpenView(ctx, src, r)
	if err != nil {
		return nil, err
	}
	wanted := wantedFiles(v.manifest, want)
	entries := make([]Entry, 0, len(wanted))
	for _, e := range wanted {
		entries = append(entries, e)
	}
	contents, err := v.contents(ctx, entries)
	if err != nil {
		return nil, fmt.Errorf("cannot read files of release tree %s: %w", v.record.Tree, err)
	}
	files := make(map[string][]byte, len(wanted))
	for p, e := range wanted {
		files[p] = contents[e.Hash]
	}
	return files, nil
}

// wantedFiles returns the regular files behind the wanted paths.
func wantedFiles(m *Manifest, want func(path string) bool) map[string]Entry {
	t := tree(m.Entries)
	wanted := map[string]Entry{}
	for _, e := range m.Entries {
		if e.Kind == KindDirectory || !want(e.Path) {
			continue
		}
		file := e
		if e.Kind == KindLink {
			end, _ := t.resolve(e)
			file, _ = t.find(end) // "" and "." are no entries
		}
		if file.regular() {
			wanted[e.Path] = file
		}
	}
	return wanted
}

// References lists the objects that an installation on an empty node needs, except the deltas.
func References(ctx context.Context, src Source, r Record) ([]Object, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	encoded, err := fetchWhole(ctx, src, []Object{r.Base.Index})
	if err == nil {
		var x *index
		if x, err = decodeIndex(encoded); err == nil {
			return append(append([]Object{r.Base.Index}, x.manifest...), x.packs...), nil
		}
	}
	return nil, fmt.Errorf("cannot list the objects of release tree %s: %w", r.Tree, err)
}

// Audit reads and checks every byte that an installation on an empty node needs.
func Audit(ctx context.Context, src Source, r Record) error {
	v, err := OpenView(ctx, src, r)
	if err != nil {
		return err
	}
	if err := v.audit(ctx); err != nil {
		return fmt.Errorf("cannot read release tree %s: %w", r.Tree, err)
	}
	return nil
}

func (v *View) audit(ctx context.Context) error {
	// Packs of an earlier base may hold contents that are no longer used. Audit checks them too.
	for _, o := range v.supply.index.packs {
		if _, err := fetchObject(ctx, v.supply.src, o); err != nil {
			return err
		}
	}
	return v.supply.each(ctx, distinct(v.manifest), func(e Entry, r io.Reader) error {
		h := sha256.New()
		n, err := io.Copy(h, r)
		if err != nil {
			return err
		}
		if n != e.Size || !bytes.Equal(h.Sum(nil), e.Hash[:]) {
			return wrongContent(e.Path)
		}
		return nil
	})
}

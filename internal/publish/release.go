package publish

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/publish/controlrepo"
	"pulley/internal/publish/source"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
)

// Wish holds the operator's options for publishing a folder.
type Wish struct {
	Version string
	Message string // "" uses the subject of the commit
	By      string
	At      time.Time
	Key     *trust.Key // nil publishes without a signature
	Cache   string     // folder of cached objects; "" for none
}

func (w Wish) sign() release.Sign {
	if w.Key == nil {
		return nil
	}
	return w.Key.Sign
}

// Result is the result of Release.
type Result struct {
	Release   release.Release
	Created   bool   // false: this version with this tree existed already
	Parent    string // start of the delta; "" without a delta
	Signed    bool   // by this call
	SignedBy  string // fingerprint of the key if its signature existed already
	Sent      int    // new objects
	SentBytes int64
}

// Release publishes a folder. If the same tree is published under this version already, it only adds a missing
// signature. If two operators publish at the same time, the second release is built on the first.
func Release(ctx context.Context, s *release.Releases, from *Folder, w Wish, r Reporter) (_ Result, err error) {
	mark, err := s.BeginPublish(ctx, w.By)
	if err != nil {
		return Result{}, err
	}
	defer func() {
		if closing := mark.Close(); closing != nil { // does not change the result
			r.Note(Note{Code: MarkNotRemoved, Cause: closing})
		}
	}()
	b := &build{wish: w, store: s, mark: mark, from: from, r: r, cache: source.NewCached(s, w.Cache)}
	var taken content.Chain // the position that another release has taken
	for attempt := 0; ; attempt++ {
		done, err := b.attempt(ctx, taken)
		if !errors.Is(err, etcd.ErrConflict) || attempt == maxTries-1 {
			if trimming := b.cache.Trim(source.MaxCacheBytes); err == nil && trimming != nil {
				r.Note(Note{Code: CacheNotKept, Cause: trimming})
			}
			return done, err
		}
		taken = done.Release.Content.Chain
	}
}

// build is a folder being published.
type build struct {
	wish  Wish
	store *release.Releases
	mark  *release.Publishing
	from  *Folder
	r     Reporter
	cache *source.Cached

	objects, sent int
	sentBytes     int64
}

func (b *build) attempt(ctx context.Context, taken content.Chain) (Result, error) {
	all, err := b.releases(ctx)
	if err != nil {
		return Result{}, err
	}
	done := Result{Release: b.from.record(b.wish), Signed: b.wish.Key != nil}
	tree := b.from.Manifest.Tree()
	for _, r := range all {
		if r.Version == b.wish.Version && r.Content.Tree == tree {
			return b.existing(ctx, r)
		}
	}
	parent, of, err := b.openParent(ctx, done.Release, all, taken)
	if err != nil {
		return done, err
	}
	delta, err := b.pack(ctx, &done, parent)
	if err == nil && parent.View != nil {
		err = b.complete(ctx, done.Release.Content)
	}
	var lost *source.UnavailableError
	if errors.As(err, &lost) && !fatal(ctx, err) {
		b.r.Note(Note{Code: NewLine, Subject: of, Cause: err})
		delta, err = b.pack(ctx, &done, content.Parent{})
	}
	if err != nil {
		return done, err
	}
	if delta != nil {
		done.Parent = of
	}
	if err := b.noteMoved(ctx, all, of); err != nil {
		return done, err
	}
	if done.Signed {
		b.r.Pause()
	}
	done.Created, err = b.store.Put(ctx, b.mark, done.Release, delta, b.wish.sign())
	if err == nil && !done.Created { // another publisher was faster
		r, err := b.store.Get(ctx, b.wish.Version)
		if err != nil {
			return done, err
		}
		return b.existing(ctx, r)
	}
	done.Sent, done.SentBytes = b.sent, b.sentBytes+int64(len(delta))
	return done, err
}

// existing adds the missing signature to a release that has the same tree.
func (b *build) existing(ctx context.Context, r release.SignedRelease) (Result, error) {
	done := Result{Release: r.Release}
	if b.wish.Key == nil {
		return done, nil
	}
	if done.SignedBy = b.wish.Key.Among(r.Signatures); done.SignedBy != "" {
		return done, nil
	}
	b.r.Pause()
	done.Signed = true
	return done, retry(func() error { return b.store.Sign(ctx, r.Version, b.wish.sign(), true) })
}

// releases lists the published releases. An unreadable release causes a new line, but it does not stop publishing.
func (b *build) releases(ctx context.Context) ([]release.SignedRelease, error) {
	all, err := b.store.List(ctx)
	var unreadable *etcd.UnreadableError
	if errors.As(err, &unreadable) {
		b.r.Note(Note{Code: NewLine, Cause: err})
		return nil, nil
	}
	return all, err
}

// record describes the release, without its content.
func (f *Folder) record(w Wish) release.Release {
	facts := f.Facts
	r := release.Release{
		Version: w.Version, Commit: facts.Commit, Ref: facts.Ref, Dirty: facts.Dirty, Message: model.Prose(w.Message), Author: w.By,
		CommitAuthor: facts.CommitAuthor, Modules: string(facts.Modules), FirstCommit: facts.First, At: w.At.UTC().Truncate(time.Second),
	}
	for _, e := range f.Manifest.Entries {
		ref, err := model.ParseRef(strings.TrimSuffix(path.Base(e.Path), path.Ext(e.Path)))
		if err == nil && ref.Stack == "" && controlrepo.IsEnvironment(e.Path) {
			r.Environments = append(r.Environments, ref.Environment)
		}
	}
	for _, o := range f.Overlays {
		r.Overlays = append(r.Overlays, release.Overlay{Folder: o.Folder, Source: o.Source, Commit: o.Commit, Ref: o.Ref, Dirty: o.Dirty})
		r.Dirty = r.Dirty || o.Dirty
	}
	if ref := f.Reference; ref != nil {
		r.PuppetEnvironment, r.PuppetServer = ref.Environment, ref.Server
	}
	if r.Message == "" {
		r.Message = model.Prose(facts.Subject)
	}
	return r
}

// Published reports whether the folder is published already under this version. Another tree is an error.
func (f *Folder) Published(ctx context.Context, s *release.Releases, version string) (bool, error) {
	r := f.record(Wish{Version: version})
	r.Content.Tree = f.Manifest.Tree()
	return s.Published(ctx, r)
}

// openParent reads the release to build on. If it is unreadable, a new line begins.
func (b *build) openParent(ctx context.Context, own release.Release, all []release.SignedRelease, taken content.Chain) (content.Parent, string, error) {
	if b.from.Reference != nil { // the trees have nothing in common
		return content.Parent{}, "", nil
	}
	r, last := parentOf(own.Version, slices.DeleteFunc(slices.Clone(all), func(r release.SignedRelease) bool { return r.PuppetEnvironment != "" || !own.Beside(r.Release) }))
	if r == nil {
		return content.Parent{}, "", nil
	}
	if c := r.Content.Chain; c.Line == taken.Line && c.Seq+1 == taken.Seq {
		last = false // a removed release has the next position
	}
	b.r.Progress(Progress{Step: Comparing, Subject: r.Version})
	view, err := content.OpenView(ctx, b.cache, r.Content)
	switch {
	case fatal(ctx, err):
		return content.Parent{}, "", err
	case err != nil:
		b.r.Note(Note{Code: NewLine, Subject: r.Version, Cause: err})
		return content.Parent{}, "", nil
	}
	return content.Parent{View: view, Last: last}, r.Version, nil
}

// noteMoved reports tags and branches that lead to other commits than in the release of.
func (b *build) noteMoved(ctx context.Context, all []release.SignedRelease, of string) error {
	i := slices.IndexFunc(all, func(r release.SignedRelease) bool { return r.Version == of })
	if of == "" || i < 0 || len(b.from.Resolved) == 0 {
		return nil
	}
	files, err := content.ReadFiles(ctx, b.cache, all[i].Content, func(p string) bool { return p == source.DeployFile })
	if err != nil && !fatal(ctx, err) {
		return nil // its content is lost: a new line began
	}
	if err != nil {
		return err
	}
	before := source.ParseModules(files[source.DeployFile])
	var moved []string
	for _, m := range b.from.Resolved {
		if was := before[m.Name]; was.SHA != "" && m.SHA != "" && was.SHA != m.SHA && was.Version == m.Version {
			moved = append(moved, m.Name+" "+ModuleChange{m.Name, &was, &m}.Describe())
		}
	}
	if more := len(moved) - maxOddities; more > 0 {
		moved = append(moved[:maxOddities], fmt.Sprintf("%d more", more))
	}
	if len(moved) > 0 {
		b.r.Note(Note{Code: MovedModules, Subject: of, Detail: strings.Join(moved, ", ")})
	}
	return nil
}

// parentOf returns the release with the highest version below this one, or else the most recently published one. Last
// reports whether the parent is the last on its line.
func parentOf(version string, all []release.SignedRelease) (parent *release.Release, last bool) {
	v, err := release.ParseVersion(version)
	if err != nil || len(all) == 0 {
		return nil, false
	}
	var below *release.SignedRelease
	for i := range all {
		if have, err := release.ParseVersion(all[i].Version); err == nil && have.LessThan(v) {
			below = &all[i] // all is sorted by version
		}
	}
	if below == nil {
		below = &all[0]
		for i := range all {
			if !all[i].At.Before(below.At) {
				below = &all[i]
			}
		}
	}
	at := below.Content.Chain
	follows := func(r release.SignedRelease) bool {
		return r.Content.Chain.Line == at.Line && r.Content.Chain.Seq > at.Seq
	}
	return &below.Release, !slices.ContainsFunc(all, follows)
}

// pack stores the objects that the parent lacks, and returns the delta from the parent.
func (b *build) pack(ctx context.Context, done *Result, parent content.Parent) (delta []byte, err error) {
	b.r.Progress(Progress{Step: Packing, Subject: b.wish.Version})
	done.Release.Content, delta, err = content.Build(ctx, b.from.Root, b.from.Manifest, parent, b.wish.Version,
		func(o content.Object, bytes []byte) error { return b.put(ctx, o.Hash, bytes) })
	return delta, err
}

func (b *build) put(ctx context.Context, hash string, bytes []byte) error {
	wrote, err := b.mark.PutObject(ctx, hash, bytes)
	if err != nil {
		return err
	}
	b.cache.Keep(hash, bytes)
	if wrote {
		b.sent++
		b.sentBytes += int64(len(bytes))
	}
	b.objects++
	b.r.Progress(Progress{Step: Publishing, Subject: b.wish.Version, Values: b.objects, Bytes: b.sentBytes})
	return nil
}

// complete checks that etcd has every object that the release shares with its parent. The cache could hide an object
// that is missing in etcd; complete restores it from the cache.
func (b *build) complete(ctx context.Context, r content.Record) error {
	objects, err := content.References(ctx, b.cache, r)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	if err := b.store.Objects(ctx, func(hash string) error { there[hash] = true; return nil }); err != nil {
		return err
	}
	for _, o := range objects {
		if there[o.Hash] {
			continue
		}
		bytes, err := b.cache.Object(ctx, o.Hash)
		if err == nil {
			err = b.put(ctx, o.Hash, bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/agent"
	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/source"
	"pulley/internal/store"
)

// writing is the second half of publishing: a tree that was read becomes a release in etcd.
type writing struct {
	publishOptions
	store    *store.Store
	mark     *store.Publishing
	from     *reading
	progress *cli.Progress
	cache    *source.Cached

	looked, sent int
	sentBytes    int64
}

// published is how it went.
type published struct {
	release   store.Release
	created   bool
	parent    string // the version that the delta leads from; "" without a delta
	signed    bool   // by this publish
	signedBy  string // fingerprint of the key to sign with, where it had signed before
	sent      int
	sentBytes int64
}

// write publishes. Who publishes after the same release at the same moment comes second, and builds upon the other.
func (w *writing) write(ctx context.Context) (published, error) {
	var taken content.Chain // the place that was found taken
	for attempt := 0; ; attempt++ {
		done, err := w.attempt(ctx, taken)
		if !errors.Is(err, store.ErrConflict) || attempt == 4 {
			return done, err
		}
		taken = done.release.Content.Chain
	}
}

func (w *writing) attempt(ctx context.Context, taken content.Chain) (published, error) {
	all, err := w.releases(ctx)
	if err != nil {
		return published{}, err
	}
	done := published{release: w.record(), signed: w.sign.given(w.env)}
	tree := w.from.manifest.Tree()
	for _, r := range all {
		if r.Version == w.version && r.Content.Tree == tree {
			return w.already(ctx, r)
		}
	}
	parent, of, err := w.openParent(ctx, all, taken)
	if err != nil {
		return done, err
	}
	delta, err := w.build(ctx, &done, parent)
	if err == nil && parent.View != nil {
		err = w.complete(ctx, done.release.Content)
	}
	var lost *source.UnavailableError
	if errors.As(err, &lost) && !endsAll(ctx, err) {
		w.without(of, err)
		delta, err = w.build(ctx, &done, content.Parent{})
	}
	if err != nil {
		return done, err
	}
	if delta != nil {
		done.parent = of
	}
	if done.signed {
		w.progress.Done() // ssh-keygen may ask for a passphrase
	}
	done.created, err = w.store.PutRelease(ctx, w.mark, done.release, delta, w.sign.signer(w.env))
	if err == nil && !done.created { // somebody else published it meanwhile
		r, err := w.store.Release(ctx, w.version)
		if err != nil {
			return done, err
		}
		return w.already(ctx, r)
	}
	done.sent, done.sentBytes = w.sent, w.sentBytes+int64(len(delta))
	return done, err
}

// already gives a release that is there, with this very tree, the signature that it lacks.
func (w *writing) already(ctx context.Context, r store.SignedRelease) (published, error) {
	done := published{release: r.Release}
	if !w.sign.given(w.env) {
		return done, nil
	}
	if done.signedBy = w.sign.signed(w.env, r.Signatures); done.signedBy != "" {
		return done, nil
	}
	w.progress.Done() // ssh-keygen may ask for a passphrase
	done.signed = true
	return done, retryConflicts(func() error { return w.store.SignRelease(ctx, r.Version, w.sign.signer(w.env), true) })
}

// without says that the release can't be built upon the one before.
func (w *writing) without(parent string, err error) {
	w.note(w.progress, fmt.Sprintf("a new line begins, because %s can't be built upon: %v", parent, err))
}

// endsAll says whether an error is none of one release: etcd is gone, or somebody gave up.
func endsAll(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, agent.ErrUnreachable)
}

// releases lists what is published. One that can't be read must not keep the next from being published.
func (w *writing) releases(ctx context.Context) ([]store.SignedRelease, error) {
	all, err := w.store.Releases(ctx)
	var unreadable *store.UnreadableError
	if errors.As(err, &unreadable) {
		w.note(w.progress, fmt.Sprintf("a new line begins: %v", err))
		return nil, nil
	}
	return all, err
}

func (w *writing) record() store.Release {
	facts := w.from.Facts
	r := store.Release{
		Version: w.version, Commit: facts.Commit, Ref: facts.Ref, Dirty: facts.Dirty, Message: w.message, Author: w.env.User,
		CommitAuthor: facts.CommitAuthor, Modules: string(facts.Modules), At: w.env.Now().UTC().Truncate(time.Second),
	}
	if r.Message == "" {
		r.Message = facts.Subject
	}
	return r
}

// openParent reads what the release is built upon. Without one, or when it can't be read, a new line begins.
func (w *writing) openParent(ctx context.Context, all []store.SignedRelease, taken content.Chain) (content.Parent, string, error) {
	r, last := parentOf(w.version, all)
	if r == nil {
		return content.Parent{}, "", nil
	}
	if c := r.Content.Chain; c.Line == taken.Line && c.Seq+1 == taken.Seq {
		last = false // a release that is listed no more has the place after it
	}
	w.progress.Show("comparing with " + r.Version)
	view, err := content.OpenView(ctx, w.cache, r.Content)
	switch {
	case err != nil && endsAll(ctx, err):
		return content.Parent{}, "", err
	case err != nil:
		w.without(r.Version, err)
		return content.Parent{}, "", nil
	}
	return content.Parent{View: view, Last: last}, r.Version, nil
}

// parentOf is the release with the highest version below this one, or else the one that was published last; and whether it
// is the last one on its line.
func parentOf(version string, all []store.SignedRelease) (parent *store.Release, last bool) {
	v, err := store.ParseVersion(version)
	if err != nil || len(all) == 0 {
		return nil, false
	}
	var below *store.SignedRelease
	for i := range all {
		if have, err := store.ParseVersion(all[i].Version); err == nil && have.LessThan(v) {
			below = &all[i] // all are in the order of versions
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
	follows := func(r store.SignedRelease) bool {
		return r.Content.Chain.Line == at.Line && r.Content.Chain.Seq > at.Seq
	}
	return &below.Release, !slices.ContainsFunc(all, follows)
}

// build packs what the parent has not and stores it.
func (w *writing) build(ctx context.Context, done *published, parent content.Parent) (delta []byte, err error) {
	w.progress.Show("packing " + w.version)
	done.release.Content, delta, err = content.Build(ctx, w.from.Root, w.from.manifest, parent, w.version, func(o content.Object, b []byte) error {
		return w.put(ctx, o.Hash, b)
	})
	return delta, err
}

func (w *writing) put(ctx context.Context, hash string, b []byte) error {
	wrote, err := w.store.PutObject(ctx, hash, b)
	if err != nil {
		return err
	}
	w.cache.Keep(hash, b)
	if wrote {
		w.sent++
		w.sentBytes += int64(len(b))
	}
	w.looked++
	w.progress.Show(fmt.Sprintf("publishing %s: %s, %s new to etcd", w.version, cli.Count(w.looked, "object"), cli.Bytes(w.sentBytes)))
	return nil
}

// complete makes sure that etcd has every object that the release takes from its parent. What the cache has of them would
// hide that they are gone; it puts them back instead.
func (w *writing) complete(ctx context.Context, r content.Record) error {
	objects, err := content.References(ctx, w.cache, r)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	if err := w.store.Objects(ctx, false, func(hash string, _ int64) error { there[hash] = true; return nil }); err != nil {
		return err
	}
	for _, o := range objects {
		if there[o.Hash] {
			continue
		}
		b, err := w.cache.Object(ctx, o.Hash)
		if err == nil {
			err = w.put(ctx, o.Hash, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

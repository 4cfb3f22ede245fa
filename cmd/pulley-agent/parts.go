package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/content"
	"pulley/internal/mirror"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// keptReleases is how many trees stay on disk beside those that are needed, so that going back needs no download.
const keptReleases = 3

// parts puts a target's release and data on disk, from etcd and mirrors.
type parts struct {
	store    *store.Store
	objects  content.Source // what releases are made of, but for their deltas
	mirrors  *mirror.Client // nil when there is none
	verifier *trust.Verifier
	trees    *content.Store
	dir      string // of data
	log      *slog.Logger
}

var _ agent.Content = (*parts)(nil)

// found is what etcd said of one target, so that it is asked once.
type found struct {
	release *store.SignedRelease
	delta   ahead
	data    *store.SignedGeneration
}

// Stage fetches what of a target is not here yet. What is new has to prove first that it is authentic, and is remembered
// as attempted before anybody can hand it to Puppet. What is in place only has to be whole: whoever signed it may have
// left since.
func (p *parts) Stage(ctx context.Context, id agent.Identity, t agent.Target, how agent.Staging) (agent.Staged, error) {
	var f found
	if !how.Taking {
		return p.fetch(ctx, id, t, &f)
	}
	signers, mark, err := p.verifier.Signers()
	if err != nil {
		return agent.Staged{}, err
	}
	if signers == nil {
		return p.fetch(ctx, id, t, &f)
	}
	raised, err := p.verify(ctx, signers, mark, id, t, &f)
	if err != nil {
		return agent.Staged{}, err
	}
	s, err := p.fetch(ctx, id, t, &f)
	if err == nil && raised != mark && !how.Noop {
		err = raised.Save(p.verifier.Files.Mark)
	}
	return s, err
}

// verify reads the records of a target and returns the high-water mark to save before it is attempted.
func (p *parts) verify(ctx context.Context, signers *trust.Signers, mark trust.HighWaterMark, id agent.Identity, t agent.Target, f *found) (trust.HighWaterMark, error) {
	r, err := p.release(ctx, t, f)
	if err == nil {
		err = p.verifier.Release(signers, wanted(id, t), releaseRecord(r))
	}
	known := mark.Environment == id.Environment && mark.Verified == t.DataDigest // with data that expired since, a new release is still one
	if err == nil && t.Data != 0 && !known {
		var g store.SignedGeneration
		if g, err = p.record(ctx, id, t, f); err == nil {
			err = p.verifier.Data(signers, wanted(id, t), dataRecord(g))
		}
	}
	var unreadable *store.UnreadableError
	if errors.As(err, &unreadable) {
		err = trust.Unreadable(err)
	}
	if err != nil {
		return mark, err
	}
	raised, err := p.verifier.Raise(ctx, signers, mark, wanted(id, t))
	if err == nil {
		raised.Verified = t.DataDigest
	}
	return raised, err
}

func (p *parts) fetch(ctx context.Context, id agent.Identity, t agent.Target, f *found) (agent.Staged, error) {
	var s agent.Staged
	if err := p.ensure(ctx, t, f); err != nil {
		return s, err
	}
	release, err := p.trees.Lock(t.Tree)
	if err != nil {
		return s, err
	}
	s.Release, s.Tree = release, p.trees.Path(t.Tree)
	if t.Data == 0 {
		// The first generation that has nothing for this node must count as no change.
		s.DataDigest = hieradata.NodeDigest(hieradata.Generation{}, id.Role, id.Node)
		return s, nil
	}
	g, err := p.generation(ctx, id, t, f)
	if err != nil {
		return s, err
	}
	s.DataDigest = hieradata.NodeDigest(g, id.Role, id.Node)
	s.Data, err = p.materialise(ctx, id, g)
	return s, err
}

// ensure has the tree on disk as it was published: Puppet succeeds on what is left of one, as an empty catalog is fine.
func (p *parts) ensure(ctx context.Context, t agent.Target, f *found) error {
	err := p.trees.Verify(t.Tree)
	var missing *content.NotInstalledError
	var damaged *content.DamagedError
	if err == nil || !errors.As(err, &missing) && !errors.As(err, &damaged) {
		return err
	}
	r, err := p.release(ctx, t, f)
	if err == nil && r.Content.Tree != t.Tree {
		err = fmt.Errorf("cannot install release %s: its record names tree %.12s and the target %.12s\nsomebody wrote into etcd by hand; publish under a new version", t.Release, r.Content.Tree, t.Tree)
	}
	if err == nil && damaged != nil { // what is left of it goes only once etcd has answered
		p.log.Warn("the release is damaged on disk and installed anew", "release", t.Release, "err", damaged)
		err = p.trees.Discard(t.Tree)
	}
	if err == nil {
		err = p.install(ctx, p.source(f.delta), r.Content)
	}
	if err != nil && damaged != nil {
		return fmt.Errorf("%w; it can't be installed anew: %w", damaged, err)
	}
	return err
}

// release is what etcd says of a target's release. The delta that follows what is in place comes with it: mostly that is
// all that the node lacks.
func (p *parts) release(ctx context.Context, t agent.Target, f *found) (store.SignedRelease, error) {
	if f.release != nil {
		return *f.release, nil
	}
	if current, err := p.trees.Current(); err == nil && current != "" {
		if line, seq, ok := p.trees.Position(current); ok {
			f.delta.line, f.delta.seq = line, seq+1
		}
	}
	r, delta, err := p.store.Approach(ctx, t.Release, f.delta.line, f.delta.seq)
	if err == nil {
		f.release, f.delta.bytes = &r, delta
	}
	return r, err
}

// ahead is a delta that was read before anybody asked for it.
type ahead struct {
	line  string
	seq   int64
	bytes []byte // nil when there is none
}

// source is what an installation reads. Deltas are small and come from etcd, as what was read ahead did: when they are no
// good and asked for again, a mirror may have them whole.
func (p *parts) source(a ahead) content.Source {
	if p.mirrors == nil {
		return a.before(p.store)
	}
	return split{p.objects, a.or(p.store, p.mirrors)}
}

func (a ahead) or(etcd, mirrors content.Source) content.Source {
	return mirror.Fallback(a.before(etcd), mirrors)
}

// before is src for whoever asks for deltas from this one on.
func (a ahead) before(src content.Source) content.Source {
	if a.bytes == nil {
		return src
	}
	return &aheadOf{Source: src, have: a}
}

type aheadOf struct {
	content.Source
	have ahead
	gave bool // whoever asks again found no use for it
}

func (s *aheadOf) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	if s.gave || line != s.have.line || from != s.have.seq || to < from {
		return s.Source.Deltas(ctx, line, from, to)
	}
	s.gave = true
	deltas := [][]byte{s.have.bytes}
	if to == from {
		return deltas, nil
	}
	rest, err := s.Source.Deltas(ctx, line, from+1, to)
	return append(deltas, rest...), err
}

func (p *parts) install(ctx context.Context, src content.Source, r content.Record) error {
	err := p.trees.Install(ctx, src, r)
	if errors.Is(err, syscall.ENOSPC) {
		// Room may be had at the price of old releases: then going back to one needs a download.
		if _, freed, collectErr := p.trees.Collect([]string{r.Tree}, 1); collectErr == nil && freed > 0 {
			err = p.trees.Install(ctx, src, r)
		}
	}
	return err
}

func (p *parts) Current() (string, error)   { return p.trees.Current() }
func (p *parts) Activate(tree string) error { return p.trees.Activate(tree) }

// Collect removes trees, layers and records that none of the kept targets needs.
func (p *parts) Collect(keep []agent.Target, dataDigests []string) error {
	var trees []string
	records := map[string]bool{}
	for _, t := range keep {
		trees = append(trees, t.Tree)
		records[t.DataDigest+recordSuffix] = true
	}
	_, _, err := p.trees.Collect(trees, keptReleases)
	_, dataErr := hieradata.Collect(p.dir, dataDigests)
	old, globErr := filepath.Glob(filepath.Join(p.dir, "*"+recordSuffix))
	err = errors.Join(err, dataErr, globErr)
	for _, name := range old {
		if !records[filepath.Base(name)] {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

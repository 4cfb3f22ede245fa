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
	"pulley/internal/store"
)

// keptReleases is how many trees stay on disk beside those that are needed, so that going back needs no download.
const keptReleases = 3

// parts puts a target's release and data on disk, from etcd.
type parts struct {
	store *store.Store
	trees *content.Store
	dir   string // of data
	log   *slog.Logger
}

var _ agent.Content = (*parts)(nil)

// Stage fetches what of a target is not here yet.
func (p *parts) Stage(ctx context.Context, id agent.Identity, t agent.Target) (agent.Staged, error) {
	var s agent.Staged
	if err := p.ensure(ctx, t); err != nil {
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
	g, err := p.generation(ctx, id, t)
	if err != nil {
		return s, err
	}
	s.DataDigest = hieradata.NodeDigest(g, id.Role, id.Node)
	s.Data, err = p.materialise(ctx, id, g)
	return s, err
}

// ensure has the tree on disk as it was published: Puppet succeeds on what is left of one, as an empty catalog is fine.
func (p *parts) ensure(ctx context.Context, t agent.Target) error {
	err := p.trees.Verify(t.Tree)
	var missing *content.NotInstalledError
	var damaged *content.DamagedError
	if err == nil || !errors.As(err, &missing) && !errors.As(err, &damaged) {
		return err
	}
	r, err := p.record(ctx, t)
	if err == nil && damaged != nil { // what is left of it goes only once etcd has answered
		p.log.Warn("the release is damaged on disk and installed anew", "release", t.Release, "err", damaged)
		err = p.trees.Discard(t.Tree)
	}
	if err == nil {
		err = p.install(ctx, r.Content)
	}
	if err != nil && damaged != nil {
		return fmt.Errorf("%w; it can't be installed anew: %w", damaged, err)
	}
	return err
}

// record is what etcd says of a target's release.
func (p *parts) record(ctx context.Context, t agent.Target) (store.Release, error) {
	r, err := p.store.Release(ctx, t.Release)
	if err == nil && r.Content.Tree != t.Tree {
		err = fmt.Errorf("cannot install release %s: its record names tree %.12s and the target %.12s\nsomebody wrote into etcd by hand; publish under a new version", t.Release, r.Content.Tree, t.Tree)
	}
	return r, err
}

func (p *parts) install(ctx context.Context, r content.Record) error {
	err := p.trees.Install(ctx, p.store, r)
	if errors.Is(err, syscall.ENOSPC) {
		// Room may be had at the price of old releases: then going back to one needs a download.
		if _, freed, collectErr := p.trees.Collect([]string{r.Tree}, 1); collectErr == nil && freed > 0 {
			err = p.trees.Install(ctx, p.store, r)
		}
	}
	return err
}

// generation is the record of a target's data: from disk where it was before, so that enforcing needs no etcd.
func (p *parts) generation(ctx context.Context, id agent.Identity, t agent.Target) (hieradata.Generation, error) {
	if g, err := p.load(t.DataDigest); err == nil {
		return g, nil
	}
	g, err := p.store.Generation(ctx, id.Environment, t.Data)
	if err != nil {
		return g, err
	}
	if g.Digest() != t.DataDigest {
		return g, fmt.Errorf("cannot use data generation %d: its digest is %.12s and the target names %.12s", t.Data, g.Digest(), t.DataDigest)
	}
	return g, p.save(g)
}

// materialise writes the layers that concern this node. What is in place already is not fetched again.
func (p *parts) materialise(ctx context.Context, id agent.Identity, g hieradata.Generation) (string, error) {
	contents := map[string][]byte{}
	inPlace := filepath.Join(p.dir, hieradata.NodeDigest(g, id.Role, id.Node))
	files := hieradata.Files()
	for i, layer := range hieradata.Order(id.Role, id.Node) {
		digest, has := g.Layers[layer]
		if !has {
			continue
		}
		b, err := os.ReadFile(filepath.Join(inPlace, files[i]))
		if err != nil || hieradata.Digest(b) != digest {
			if b, err = p.store.Layer(ctx, id.Environment, digest); err != nil {
				return "", err
			}
		}
		contents[digest] = b
	}
	return hieradata.Materialise(p.dir, g, id.Role, id.Node, contents)
}

const recordSuffix = ".generation"

func (p *parts) load(digest string) (hieradata.Generation, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, digest+recordSuffix))
	if err != nil {
		return hieradata.Generation{}, err
	}
	if hieradata.Digest(b) != digest {
		return hieradata.Generation{}, fmt.Errorf("cannot use the data record %.12s: it is damaged", digest)
	}
	return hieradata.DecodeGeneration(b)
}

func (p *parts) save(g hieradata.Generation) error {
	b, err := g.Encode()
	if err != nil {
		return err
	}
	name := filepath.Join(p.dir, hieradata.Digest(b)+recordSuffix)
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("cannot keep the data record: %w", err)
	}
	// Not flushed: load checks the hash, and a lost record is fetched again.
	err = os.WriteFile(name+".new", b, 0o600)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("cannot keep the data record: %w", err)
	}
	return nil
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

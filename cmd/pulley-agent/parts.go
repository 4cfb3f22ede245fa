package main

import (
	"context"
	"errors"
	"fmt"
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
}

var _ agent.Content = (*parts)(nil)

// Stage fetches what of a target is not here yet.
func (p *parts) Stage(ctx context.Context, id agent.Identity, t agent.Target) (agent.Staged, error) {
	var s agent.Staged
	if !p.trees.Has(t.Tree) {
		if err := p.install(ctx, t); err != nil {
			return s, err
		}
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

func (p *parts) install(ctx context.Context, t agent.Target) error {
	r, err := p.store.Release(ctx, t.Release)
	if err != nil {
		return err
	}
	if r.Content.Tree != t.Tree {
		return fmt.Errorf("cannot install release %s: its record names tree %.12s and the target %.12s\nsomebody wrote into etcd by hand; publish under a new version", t.Release, r.Content.Tree, t.Tree)
	}
	err = p.trees.Install(ctx, p.store, r.Content)
	if errors.Is(err, syscall.ENOSPC) {
		// Room may be had at the price of old releases: then going back to one needs a download.
		if _, freed, collectErr := p.trees.Collect([]string{t.Tree}, 1); collectErr == nil && freed > 0 {
			err = p.trees.Install(ctx, p.store, r.Content)
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

package stage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/store"
)

// generation returns a target's data. It reads the disk first, so that enforcement needs no etcd.
func (c *Content) generation(ctx context.Context, id agent.Identity, t agent.Target, f *found) (hieradata.Generation, error) {
	if g, err := c.load(t.DataDigest); err == nil {
		return g, nil
	}
	g, err := c.record(ctx, id, t, f)
	if err != nil {
		return g.Generation, err
	}
	if digest := hieradata.Digest(g.Record); digest != t.DataDigest {
		return g.Generation, fmt.Errorf("cannot use data generation %d: its digest is %.12s and the target names %.12s", t.Data, digest, t.DataDigest)
	}
	return g.Generation, c.save(g.Record)
}

// record returns the record of a target's data from etcd.
func (c *Content) record(ctx context.Context, id agent.Identity, t agent.Target, f *found) (store.SignedGeneration, error) {
	if f.data != nil {
		return *f.data, nil
	}
	g, err := c.Store.Targets.Generation(ctx, id.Environment, t.Data)
	if err == nil {
		f.data = &g
	}
	return g, err
}

// materialise writes the layers that concern this node. It does not fetch layers that are in place already.
func (c *Content) materialise(ctx context.Context, id agent.Identity, g hieradata.Generation) (string, error) {
	contents := map[string][]byte{}
	inPlace := filepath.Join(c.dir, hieradata.NodeDigest(g, id.Role, id.Node))
	files := hieradata.Files()
	for i, layer := range hieradata.Order(id.Role, id.Node) {
		digest, has := g.Layers[layer]
		if !has {
			continue
		}
		b, err := os.ReadFile(filepath.Join(inPlace, files[i]))
		if err != nil || hieradata.Digest(b) != digest {
			if b, err = c.Store.Targets.Layer(ctx, id.Environment, digest); err != nil {
				return "", err
			}
		}
		contents[digest] = b
	}
	return hieradata.Materialise(c.dir, g, id.Role, id.Node, contents)
}

const recordSuffix = ".generation"

func (c *Content) load(digest string) (hieradata.Generation, error) {
	b, err := os.ReadFile(filepath.Join(c.dir, digest+recordSuffix))
	if err != nil {
		return hieradata.Generation{}, err
	}
	if hieradata.Digest(b) != digest {
		return hieradata.Generation{}, fmt.Errorf("cannot use the data record %.12s: it is damaged", digest)
	}
	return hieradata.DecodeGeneration(b)
}

func (c *Content) save(b []byte) error {
	name := filepath.Join(c.dir, hieradata.Digest(b)+recordSuffix)
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("cannot store the data record: %w", err)
	}
	// No flush: load checks the hash, and the agent fetches a lost record again.
	if err := atomicfile.WriteVolatile(name, b, 0o600); err != nil {
		return fmt.Errorf("cannot store the data record: %w", err)
	}
	return nil
}

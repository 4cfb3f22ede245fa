// Package stage puts the parts of a target on a node's disk. It fetches the release and the data from etcd and mirrors,
// and verifies that they are authentic before the node attempts them. It must never change files that Puppet sees
// before Activate. If the node has a list of signers, it must never accept a record that it cannot verify.
package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/desired"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/hosts"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
	"pulley/internal/puppet"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/mirror"
	"pulley/internal/release/trust"
)

// keptReleases is the number of unneeded trees that stay on disk, to make a rollback possible without a download.
const keptReleases = 3

// Content puts a target's release and data on this machine's disk, from etcd and mirrors.
type Content struct {
	Store    *control.Client
	Objects  content.Source // of releases and agents, without deltas
	Verifier *trust.Verifier

	mirrors *mirror.Client // nil: no mirrors
	trees   *content.Store
	dir     string // of data
	log     *slog.Logger
	now     func() time.Time
}

var _ agent.Content = (*Content)(nil)

// Open connects to etcd, and to the mirrors if any. Large objects come from a mirror first, because thousands of nodes
// may want them at once. Deltas come from etcd. Each source is the fallback of the other.
func Open(c nodeconfig.Config, now func() time.Time, log *slog.Logger) (*Content, error) {
	trees, err := content.OpenStore(c.StateDir())
	if err != nil {
		return nil, err
	}
	trees.Now = now
	if c.DiskReserveMiB > 0 {
		trees.Reserve = c.DiskReserveMiB << 20
	}
	mirrors, err := c.Mirror()
	if err != nil {
		return nil, err
	}
	s, err := control.Open(c.Store)
	if err != nil {
		return nil, err
	}
	p := &Content{
		Store: s, Objects: s.Releases, mirrors: mirrors, Verifier: &trust.Verifier{Files: Signers(c), Permits: s.Records.Permits, Now: now},
		trees: trees, dir: filepath.Join(c.StateDir(), "data"), log: log, now: now,
	}
	if mirrors != nil {
		p.Objects = mirror.Fallback(mirrors, s.Releases)
	}
	return p, nil
}

// Close closes the connections.
func (c *Content) Close() error {
	if c.mirrors != nil {
		c.mirrors.Close()
	}
	return c.Store.Close()
}

// found caches etcd's answers about one target, to read each only once.
type found struct {
	release *release.SignedRelease
	delta   ahead
	data    *desired.SignedGeneration
}

// Stage fetches the missing parts of a target. A new target must be authentic. Stage records it as attempted before
// Puppet can use it. A target in place must only be complete: its signer may have been removed since.
func (c *Content) Stage(ctx context.Context, id model.Identity, t model.Target, how agent.Staging) (agent.Staged, error) {
	var f found
	if !how.Taking {
		return c.fetch(ctx, id, t, &f)
	}
	signers, mark, err := c.Verifier.Signers()
	if err != nil {
		return agent.Staged{}, err
	}
	if signers == nil {
		required, err := c.Store.Node.RequiresSignatures(ctx, id.Environment)
		if err == nil && required {
			err = refusal.New(refusal.SignersRequired, "environment", id.Environment)
		}
		if err != nil {
			return agent.Staged{}, err
		}
		return c.fetch(ctx, id, t, &f)
	}
	raised, err := c.verify(ctx, signers, mark, id, t, how, &f)
	if err != nil {
		return agent.Staged{}, err
	}
	s, err := c.fetch(ctx, id, t, &f)
	if err == nil && raised != mark && !how.Noop {
		err = raised.Save(c.Verifier.Files.Mark)
	}
	return s, err
}

// verify checks the records of a target and returns the high-water mark to save before the attempt. A preview only needs
// signed records.
func (c *Content) verify(ctx context.Context, signers *trust.Signers, mark trust.HighWaterMark, id model.Identity, t model.Target, how agent.Staging, f *found) (trust.HighWaterMark, error) {
	r, err := c.release(ctx, t, f)
	if err == nil {
		err = c.Verifier.Release(signers, wanted(id, t), releaseRecord(r))
	} else if errors.Is(err, etcd.ErrNotFound) {
		err = refusal.New(refusal.RecordMissing, "release", t.Release)
	}
	// Expired data that is already verified must not block a new release.
	if err == nil && t.Data != 0 && !mark.Knows(wanted(id, t)) {
		var g desired.SignedGeneration
		if g, err = c.record(ctx, id, t, f); err == nil {
			err = c.Verifier.Data(signers, wanted(id, t), dataRecord(g))
		} else if errors.Is(err, etcd.ErrNotFound) {
			err = refusal.New(refusal.RecordMissing, "data", t.Data)
		}
	}
	if err != nil {
		var unreadable *etcd.UnreadableError
		if errors.As(err, &unreadable) {
			err = trust.Unreadable(err)
		}
		return mark, err
	}
	if how.Preview {
		return mark, nil
	}
	return c.Verifier.Raise(ctx, signers, mark, wanted(id, t))
}

func (c *Content) fetch(ctx context.Context, id model.Identity, t model.Target, f *found) (agent.Staged, error) {
	var s agent.Staged
	if err := c.ensure(ctx, t, f); err != nil {
		return s, err
	}
	release, err := c.trees.Lock(t.Tree)
	if err != nil {
		return s, err
	}
	s.Release, s.Tree = release, c.trees.Path(t.Tree)
	s.Enforce = puppet.Enforcement(s.Tree, id)
	settings, err := puppet.ReadReleaseSettings(s.Tree)
	if err == nil && settings.PuppetEnvironment != "" { // the server has the data, too: no generation changes anything
		s.DataDigest = hieradata.NodeDigest(hieradata.Generation{}, nil)
		return s, nil
	}
	levels, err := levelsOf(s.Tree, id) // the run itself refuses unusable settings
	if err != nil {
		return s, err
	}
	if t.Data == 0 {
		// A first generation without a layer for this node must count as no change.
		s.DataDigest = hieradata.NodeDigest(hieradata.Generation{}, levels)
		return s, nil
	}
	g, err := c.generation(ctx, id, t, f)
	if err != nil {
		return s, err
	}
	s.DataDigest = hieradata.NodeDigest(g, levels)
	s.Data, err = c.materialise(ctx, id, g, levels)
	return s, err
}

// ensure puts the published tree on disk and repairs a damaged one. Puppet would succeed on a damaged tree, because an
// empty catalog is valid.
func (c *Content) ensure(ctx context.Context, t model.Target, f *found) error {
	err := c.trees.Verify(t.Tree)
	var missing *content.NotInstalledError
	var damaged *content.DamagedError
	if err == nil || !errors.As(err, &missing) && !errors.As(err, &damaged) {
		return err
	}
	r, err := c.release(ctx, t, f)
	if err == nil && r.Content.Tree != t.Tree {
		err = fmt.Errorf("cannot install release %s: its record names tree %.12s and the target %.12s\npublish the release under a new version: its value in etcd was changed by hand", t.Release, r.Content.Tree, t.Tree)
	}
	if err == nil && damaged != nil { // remove a damaged tree only after etcd answered
		c.log.Warn("the release is damaged on disk and installed anew", "release", t.Release, "err", damaged)
		err = c.trees.Discard(t.Tree)
	}
	if err == nil {
		err = c.install(ctx, c.source(f.delta), r.Content)
	}
	if err != nil && damaged != nil {
		return fmt.Errorf("%w; reinstalling it failed: %w", damaged, err)
	}
	return err
}

// release returns the record of a target's release from etcd. The delta from the tree in place comes with it, and is
// mostly all that the node lacks.
func (c *Content) release(ctx context.Context, t model.Target, f *found) (release.SignedRelease, error) {
	if f.release != nil {
		return *f.release, nil
	}
	if current, err := c.trees.Current(); err == nil && current != "" {
		if line, seq, ok := c.trees.Position(current); ok {
			f.delta.line, f.delta.seq = line, seq+1
		}
	}
	r, delta, err := c.Store.Releases.GetWithDelta(ctx, t.Release, f.delta.line, f.delta.seq)
	if err == nil {
		f.release, f.delta.bytes = &r, delta
	}
	return r, err
}

// ahead is a delta that was read in advance.
type ahead struct {
	line  string
	seq   int64
	bytes []byte // nil: no delta
}

// source returns the source of an installation. Deltas are small and come from etcd, like the one read in advance. If
// that one is damaged, a mirror may have an intact one.
func (c *Content) source(a ahead) content.Source {
	etcd := a.before(c.Store.Releases)
	if c.mirrors == nil {
		return etcd
	}
	return split{c.Objects, mirror.Fallback(etcd, c.mirrors)}
}

// before returns a source that serves this delta once, and everything else from src.
func (a ahead) before(src content.Source) content.Source {
	if a.bytes == nil {
		return src
	}
	return &aheadOf{Source: src, have: a}
}

type aheadOf struct {
	content.Source
	have ahead
	gave bool // a second request means that the first answer was unusable
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

func (c *Content) install(ctx context.Context, src content.Source, r content.Record) error {
	err := c.trees.Install(ctx, src, r)
	if errors.Is(err, syscall.ENOSPC) {
		// Removing old releases frees space. A rollback to one of them then needs a download.
		if _, freed, collectErr := c.trees.Collect([]string{r.Tree}, 1); collectErr == nil && freed > 0 {
			err = c.trees.Install(ctx, src, r)
		}
	}
	return err
}

// Current returns the tree that was activated last; "" when none was.
func (c *Content) Current() (string, error) { return c.trees.Current() }

// Activate makes a staged tree the current one, by one rename.
func (c *Content) Activate(tree string) error { return c.trees.Activate(tree) }

// Collect removes trees, layers and records that none of the kept targets needs.
func (c *Content) Collect(keep []model.Target, dataDigests []string) error {
	var trees []string
	records := map[string]bool{}
	for _, t := range keep {
		trees = append(trees, t.Tree)
		records[t.DataDigest+recordSuffix] = true
	}
	_, _, err := c.trees.Collect(trees, keptReleases)
	_, dataErr := hieradata.Collect(c.dir, dataDigests)
	old, globErr := filepath.Glob(filepath.Join(c.dir, "*"+recordSuffix))
	err = errors.Join(err, dataErr, globErr)
	for _, name := range old {
		if !records[filepath.Base(name)] {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// split reads objects from one source and deltas from another.
type split struct{ objects, deltas content.Source }

func (s split) Object(ctx context.Context, hash string) ([]byte, error) {
	return s.objects.Object(ctx, hash)
}

func (s split) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	return s.deltas.Deltas(ctx, line, from, to)
}

// generation returns a target's data. It reads the disk first, so that enforcement needs no etcd.
func (c *Content) generation(ctx context.Context, id model.Identity, t model.Target, f *found) (hieradata.Generation, error) {
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
func (c *Content) record(ctx context.Context, id model.Identity, t model.Target, f *found) (desired.SignedGeneration, error) {
	if f.data != nil {
		return *f.data, nil
	}
	g, err := c.Store.Records.Generation(ctx, id.Environment, t.Data)
	if err == nil {
		f.data = &g
	}
	return g, err
}

// levelsOf returns the levels of the node's live data. The environment file of the release has their order and the node's
// attributes: it is signed, staged and rolled back with the release, and no fact of the node changes it.
func levelsOf(tree string, id model.Identity) (hieradata.Levels, error) {
	name, file, err := hosts.EnvironmentFile(tree, id.PuppetEnvironment)
	if err != nil {
		return nil, err
	}
	h, err := hieradata.ReadHierarchy(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layers of node %s: %s of the release: %w", id.Node, name, err)
	}
	_, stack, _ := strings.Cut(id.Environment, "@")
	return h.Levels(id.Role, id.Node, stack), nil
}

// materialise writes the layers that concern this node. It does not fetch layers that are in place already.
func (c *Content) materialise(ctx context.Context, id model.Identity, g hieradata.Generation, levels hieradata.Levels) (string, error) {
	contents := map[string][]byte{}
	inPlace := filepath.Join(c.dir, hieradata.NodeDigest(g, levels))
	for _, l := range levels {
		digest, has := g.Layers[l.Layer]
		if !has {
			continue
		}
		b, err := bounded.ReadFile(filepath.Join(inPlace, l.File()), hieradata.MaxInputBytes)
		if err != nil || hieradata.Digest(b) != digest {
			if b, err = c.Store.Records.Layer(ctx, id.Environment, digest); err != nil {
				return "", err
			}
		}
		contents[digest] = b
	}
	return hieradata.Materialise(c.dir, g, id.Node, levels, contents)
}

const recordSuffix = ".generation"

func (c *Content) load(digest string) (hieradata.Generation, error) {
	b, err := bounded.ReadFile(filepath.Join(c.dir, digest+recordSuffix), hieradata.MaxInputBytes)
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

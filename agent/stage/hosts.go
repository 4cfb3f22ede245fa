package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/hosts"
	"pulley/internal/model"
)

var _ agent.Hosts = (*Content)(nil)

const (
	listFile     = "list.json"
	maxHostsFile = 256 << 20 // of the list on disk: a million nodes
)

func (c *Content) hostsDir() string { return filepath.Join(filepath.Dir(c.dir), "hosts") }

// FetchHosts reads the host list and stores its usable values. The file replaces the one before completely, or not at all.
func (c *Content) FetchHosts(ctx context.Context, id model.Identity) error {
	list, exports, unreadable, err := c.Store.Node.Hosts(ctx, id)
	if err != nil {
		return err
	}
	nodes, left := hosts.Parse(list, exports)
	if left+unreadable > 0 {
		c.log.Warn("entries of the host list are not usable and are left out", "entries", left+unreadable)
	}
	before, err := c.storedHosts()
	if err != nil && !errors.Is(err, model.ErrNoHosts) {
		return err
	}
	if kept := hosts.Calm(before, nodes, c.now()); len(kept) > 0 {
		c.log.Warn("nodes change again and again; this node keeps their last values for up to an hour", "nodes", kept)
	}
	b, err := json.Marshal(nodes)
	if err == nil {
		err = c.writeHosts(listFile, b)
	}
	if err != nil {
		return fmt.Errorf("cannot store the host list: %w", err)
	}
	return nil
}

// ShowHosts writes the data file with the nodes that this node sees by the release's environment file. The file's name
// is its digest.
func (c *Content) ShowHosts(id model.Identity, tree string, w model.Watch) (model.Seen, error) {
	view, err := hosts.ViewOf(c.trees.Path(tree), id)
	if err != nil || view == nil {
		return model.Seen{}, err
	}
	nodes, err := c.storedHosts()
	if err != nil {
		return model.Seen{}, err
	}
	since := w.Since(view.Alive)
	document, err := view.Document(nodes, func(n hosts.Node) bool { return since == 0 || n.Signed > since })
	if err != nil {
		return model.Seen{}, fmt.Errorf("cannot encode the nodes that this node sees: %w", err)
	}
	s := model.Seen{Digest: hieradata.Digest(document), Settle: view.Settle, Alive: view.Alive}
	for _, n := range nodes {
		if !n.Until.IsZero() && (s.Again.IsZero() || n.Until.Before(s.Again)) {
			s.Again = n.Until
		}
	}
	s.File = filepath.Join(c.hostsDir(), s.Digest+".json")
	if have, err := bounded.ReadFile(s.File, maxHostsFile); err == nil && hieradata.Digest(have) == s.Digest {
		return s, nil
	}
	if err := c.writeHosts(filepath.Base(s.File), document); err != nil {
		return model.Seen{}, fmt.Errorf("cannot write the nodes that this node sees: %w", err)
	}
	return s, nil
}

// Export returns those facts of this machine that the release in a tree shows to other nodes.
func (c *Content) Export(id model.Identity, tree string, facts []byte) (model.Export, error) {
	e, left, err := hosts.ExportOf(c.trees.Path(tree), id.PuppetEnvironment, facts)
	for _, why := range left {
		c.log.Warn("cannot export a fact of this machine", "fact", why)
	}
	return e, err
}

// Folder returns the folder of a tree.
func (c *Content) Folder(tree string) string { return c.trees.Path(tree) }

// Difference returns what changed between two data files, for the hooks of hosts.d/; nil if nothing did. Without the first file, which only a
// damaged disk lacks, all nodes are new.
func (c *Content) Difference(number int64, before, after string) ([]byte, error) {
	old, err := c.document(before)
	if err != nil {
		c.log.Warn("the nodes that the hooks know are lost; they receive all nodes as added", "err", err)
	}
	now, err := c.document(after)
	if err != nil {
		return nil, err
	}
	d, err := hosts.Compare(old, now)
	if err != nil {
		return nil, fmt.Errorf("cannot compare the nodes that this node sees: %w", err)
	}
	if d.IsZero() {
		return nil, nil
	}
	d.Change = hieradata.Digest(fmt.Appendf(nil, "%d %s %s", number, before, after))[:16]
	return json.Marshal(d)
}

// document returns a data file by its digest.
func (c *Content) document(digest string) ([]byte, error) {
	if digest == "" {
		return nil, nil
	}
	b, err := bounded.ReadFile(filepath.Join(c.hostsDir(), digest+".json"), maxHostsFile)
	if err == nil && hieradata.Digest(b) != digest {
		err = errors.New("the file is damaged")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the nodes that this node saw: %w", err)
	}
	return b, nil
}

// storedHosts reads the list on disk. A damaged one counts as never read: etcd has it.
func (c *Content) storedHosts() (nodes []hosts.Node, err error) {
	f, err := bounded.Open(filepath.Join(c.hostsDir(), listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, model.ErrNoHosts
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the host list on disk: %w", err)
	}
	defer f.Close()
	b, err := bounded.Read(f, maxHostsFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the host list on disk: %w", err)
	}
	if err := json.Unmarshal(b, &nodes); err != nil {
		return nil, fmt.Errorf("%w: the list on disk is damaged: %w", model.ErrNoHosts, err)
	}
	return nodes, nil
}

func (c *Content) writeHosts(name string, b []byte) error {
	if err := os.MkdirAll(c.hostsDir(), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(c.hostsDir(), name), b, 0o600)
}

// CollectHosts removes the files that no run needs.
func (c *Content) CollectHosts(keep ...string) error {
	entries, err := os.ReadDir(c.hostsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		digest, is := strings.CutSuffix(e.Name(), ".json")
		if is && e.Name() != listFile && !slices.Contains(keep, digest) {
			err = errors.Join(err, os.Remove(filepath.Join(c.hostsDir(), e.Name())))
		}
	}
	return err
}

package access

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
)

// CleanupKind is the code of what Puppet servers still have of a removed node.
type CleanupKind string

// The kinds.
const (
	CleanCertificate CleanupKind = "certificate" // at a CA: serve revokes and deletes it
	CleanPuppetDB    CleanupKind = "puppetdb"    // serve deactivates the node
	CleanUnread      CleanupKind = "unread"      // the environment could not be read at the removal: serve finds the steps when it can
)

// CleanupStep is one of them, until it is done.
type CleanupStep struct {
	Kind CleanupKind `json:"kind"`
	URL  string      `json:"url,omitempty"`  // of the CA or of PuppetDB
	Name string      `json:"name,omitempty"` // in the server's certificate; "": that of the URL

	Problem model.Prose `json:"problem,omitempty"` // of the last attempt
}

// Cleanup is what Puppet servers still have of a removed node. Serve deletes it when all is done.
type Cleanup struct {
	Node     string        `json:"node"`
	Certname string        `json:"certname"`
	Removed  time.Time     `json:"removed"`
	By       string        `json:"by"`
	Steps    []CleanupStep `json:"steps"`

	Environment model.Ref `json:"-"`
}

// Former are the CAs and PuppetDBs that an environment named before: they may still have nodes of that time.
type Former struct {
	Servers []FormerServer `json:"servers"`
}

// FormerServer is one of them.
type FormerServer struct {
	CleanupStep
	Until int64 `json:"until"` // revision of etcd, shortly before the change: nodes that joined later are not known there
}

// Places are the Puppet servers that may have nodes of an environment.
type Places struct {
	spec   *environments.Environment // nil: it, or former, could not be read
	former Former
}

// Points read the places.
func (p *Places) Points(k etcd.EnvKeys) []etcd.Point {
	return []etcd.Point{
		{Key: k.Spec(), Read: func(kv *etcd.KV) error {
			p.spec, _ = environments.Decode(kv.Value) // an unreadable one stops no removal: its Puppet servers are found later
			return nil
		}},
		{Key: k.Former(), Read: func(kv *etcd.KV) error {
			if etcd.Into(&p.former)(kv) != nil {
				p.spec = nil
			}
			return nil
		}},
	}
}

// Cleanup returns what a removal leaves at the Puppet servers; nil for nothing. i may be nil. Without a spec, not all is known yet.
func (p Places) Cleanup(node string, i *Identity, r Removal) *Cleanup {
	c := Cleanup{Node: node, Certname: model.Certname(node), Removed: r.At.UTC(), By: r.By}
	if p.spec != nil {
		c.Steps = CleanupSteps(p.spec, c.Certname)
	} else {
		c.Steps = []CleanupStep{{Kind: CleanUnread}}
	}
	for _, f := range p.former.Servers {
		joined := i == nil || i.Revision <= f.Until
		own := p.spec != nil && p.spec.Puppet.IsServer(c.Certname) || c.Certname == f.Name || c.Certname == hostOf(f.URL)
		if joined && !(own && f.Kind == CleanCertificate) && !slices.ContainsFunc(c.Steps, f.same) {
			c.Steps = append(c.Steps, f.CleanupStep)
		}
	}
	if len(c.Steps) == 0 {
		return nil
	}
	return &c
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func (s CleanupStep) same(other CleanupStep) bool { return s.Kind == other.Kind && s.URL == other.URL }

// KeepFormer adds to the change of an environment that it keeps the CAs and PuppetDBs which only the old one names. revision is that of a read of
// the old one.
func KeepFormer(ctx context.Context, s *etcd.DB, b *etcd.Batch, old, e *environments.Environment, revision int64) error {
	key, now := s.Env(e.Ref()).Former(), CleanupSteps(e, "")
	had := slices.DeleteFunc(CleanupSteps(old, ""), func(one CleanupStep) bool { return slices.ContainsFunc(now, one.same) })
	if len(had) == 0 {
		return nil
	}
	former, modified, err := etcd.Single[Former](ctx, s, key)
	if err != nil {
		return err
	}
	if former == nil {
		former = &Former{}
	}
	for _, one := range had {
		former.Servers = slices.DeleteFunc(former.Servers, func(f FormerServer) bool { return one.same(f.CleanupStep) })
		former.Servers = append(former.Servers, FormerServer{one, revision})
	}
	b.If(etcd.Same(key, modified)).Put(key, former)
	return nil
}

// CleanupSteps returns the steps that remove a certname from the present Puppet servers of an environment.
func CleanupSteps(spec *environments.Environment, certname string) (steps []CleanupStep) {
	p := &spec.Puppet
	cas := p.CA.Also
	if p.CA.URL != "" {
		cas = append([]string{p.CA.URL}, cas...)
	}
	if p.IsServer(certname) {
		cas = nil
	}
	for _, url := range cas {
		steps = append(steps, CleanupStep{Kind: CleanCertificate, URL: url, Name: p.NameAt(url)})
	}
	if p.PuppetDB != "" {
		steps = append(steps, CleanupStep{Kind: CleanPuppetDB, URL: p.PuppetDB})
	}
	return steps
}

// Unread reports whether the environment of a cleanup could not be read at the removal.
func (c *Cleanup) Unread() bool {
	return c != nil && slices.ContainsFunc(c.Steps, func(s CleanupStep) bool { return s.Kind == CleanUnread })
}

// Cleanups lists all cleanups, the oldest removal first. damaged names the unreadable ones.
func (s *Joins) Cleanups(ctx context.Context) (all []Cleanup, damaged []string, err error) {
	names, err := s.db.Segments(ctx, s.db.Keys.AllCleanups())
	for i := 0; err == nil && i < len(names); i++ {
		ref, bad := model.ParseRef(names[i])
		if bad != nil {
			continue // not ours
		}
		var of map[string]Cleanup
		var worse []string
		of, worse, err = etcd.ReadAll[Cleanup](ctx, s.db, s.db.Env(ref).Cleanup(""))
		damaged = append(damaged, worse...)
		for node, c := range of {
			if c.Node != node {
				damaged = append(damaged, (&etcd.UnreadableError{Key: s.db.Env(ref).Cleanup(node), Problem: kinds.ErrOfAnother.Error()}).Error())
				continue
			}
			c.Environment = ref
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Cleanup) int {
		if by := a.Removed.Compare(b.Removed); by != 0 {
			return by
		}
		return compareCleanups(a, b)
	})
	return all, damaged, etcd.Wrap(err, "cannot list what Puppet servers have of removed nodes")
}

// FindSteps finds the steps of a removal whose environment could not be read, and stores them. It does nothing if the environment does not exist,
// or cannot be read yet.
func (s *Joins) FindSteps(ctx context.Context, of Cleanup) (Cleanup, error) {
	var at Places
	_, err := s.db.Read(ctx, map[string]int64{}, at.Points(s.db.Env(of.Environment))...)
	if err != nil || at.spec == nil {
		return of, etcd.Wrap(err, "cannot read environment %s", of.Environment)
	}
	of.Steps = nil
	if found := at.Cleanup(of.Node, nil, Removal{}); found != nil {
		of.Steps = found.Steps
	}
	return of, s.PutCleanup(ctx, of)
}

// Cleanup reads what Puppet servers still have of a removed node; nil for nothing.
func (s *Joins) Cleanup(ctx context.Context, ref model.Ref, node string) (*Cleanup, error) {
	c, _, err := etcd.Single[Cleanup](ctx, s.db, s.db.Env(ref).Cleanup(node))
	return c, etcd.Wrap(err, "cannot read what Puppet servers have of node %s", node)
}

func compareCleanups(a, b Cleanup) int {
	return slices.Compare([]string{a.Environment.String(), a.Node}, []string{b.Environment.String(), b.Node})
}

// AtPuppetCA calls do while no other serve works on the certificates of a certname at Puppet's CAs. It returns ErrConflict if one
// does. The CA knows no condition: without this lock, a serve that cleans the certificate of a removed node could clean the one that
// its successor, or a node of another environment, got a moment before. The context of do ends when the lock is lost.
func (s *Joins) AtPuppetCA(ctx context.Context, certname string, do func(context.Context) error) error {
	key := s.db.Keys.Certificate(certname)
	l, _, err := s.db.Lock(ctx, etcd.LockSpec{
		Key: func(string) string { return key }, Kind: etcd.LockCertificate, Lasts: etcd.LockLasts, Free: etcd.Same(key, 0), Rival: clientv3.OpGet(key),
	})
	if err != nil {
		return fmt.Errorf("cannot begin to work on the certificate of %s: %w", certname, err)
	}
	if l == nil {
		return etcd.ErrConflict
	}
	defer func() { _ = l.Close() }() // otherwise its lease ends it
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) })()
	return do(within)
}

// NamesakeAt returns another environment whose node, or next machine, has a node's name at a CA or PuppetDB; nil if there is none.
func (s *Joins) NamesakeAt(ctx context.Context, ref model.Ref, node, url string) (*model.Ref, error) {
	names, err := s.db.Segments(ctx, s.db.Keys.Environments())
	for i := 0; err == nil && i < len(names); i++ {
		other, bad := model.ParseRef(names[i])
		if bad != nil || other == ref {
			continue
		}
		var spec *environments.Environment
		var holder Holder
		if holder, err = s.Holder(ctx, other, node); err != nil || !holder.Returned() { // first: an environment that cannot be read stops only its own names
			continue
		}
		if spec, _, err = s.specs.Spec(ctx, other); err == nil && spec != nil && spec.Puppet.Uses(url) {
			return &other, nil
		}
	}
	return nil, etcd.Wrap(err, "cannot read which environment has a node %s", node)
}

// PutCleanup stores a cleanup after an attempt, or deletes it if no step is left. It does nothing if the node was removed again since c
// was read.
func (s *Joins) PutCleanup(ctx context.Context, c Cleanup) error {
	key := s.db.Env(c.Environment).Cleanup(c.Node)
	err := etcd.Update(ctx, s.db, key, s.db.Commit, func(old *Cleanup, b *etcd.Batch) error {
		switch {
		case old == nil || !old.Removed.Equal(c.Removed):
		case len(c.Steps) == 0:
			b.Delete(key)
		case !slices.Equal(old.Steps, c.Steps):
			b.Put(key, c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot store what Puppet servers have of %s: %w", c.Node, err)
	}
	return nil
}

// Package release stores releases of content and of pulley-agent in etcd: their records as signed documents, and their bytes by hash.
// It returns documents unchanged, with unverified signatures: package trust verifies them. It must never read a target.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	version "github.com/hashicorp/go-version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pattern"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
)

// Releases stores releases of content and of pulley-agent.
type Releases struct{ db *etcd.DB }

// In returns the releases of a keyspace.
func In(db *etcd.DB) *Releases { return &Releases{db} }

// Release is the record of a published release. It never changes.
type Release struct {
	Version      string         `json:"version"`
	Content      content.Record `json:"content"`
	Commit       string         `json:"commit,omitempty"`  // of the published work tree
	Ref          string         `json:"ref,omitempty"`     // that resolved to the commit
	Dirty        bool           `json:"dirty,omitempty"`   // it had uncommitted changes
	Message      model.Prose    `json:"message,omitempty"` // description of its content
	Author       string         `json:"author"`            // publisher
	CommitAuthor string         `json:"commit_author,omitempty"`
	Modules      string         `json:"modules,omitempty"`  // tool that resolved its Puppetfile, like r10k; "" for none
	Overlays     []Overlay      `json:"overlays,omitempty"` // in the order in which they were put on the folder
	At           time.Time      `json:"at"`

	// What tells its repository from others without a name (see Beside): the first commit of its history, and the environments that it has
	// files of.
	FirstCommit  string   `json:"first_commit,omitempty"` // "" outside of git, and for shallow clones
	Environments []string `json:"environments,omitempty"`

	// Of a reference release: the environment of a Puppet server that it names. Its tree has no code.
	PuppetEnvironment string `json:"puppet_environment,omitempty"`
	PuppetServer      string `json:"puppet_server,omitempty"` // HOST or HOST:PORT, if it names one
}

// Overlay is a second source of a release.
type Overlay struct {
	Folder string `json:"folder,omitempty"` // of the release; "" is its root
	Source string `json:"source"`           // folder or URL, without user and password
	Commit string `json:"commit,omitempty"`
	Ref    string `json:"ref,omitempty"`
	Dirty  bool   `json:"dirty,omitempty"`
}

// SignedRelease is a release with the exact bytes that its signatures cover. The signatures are unverified.
type SignedRelease struct {
	Release
	Record     []byte `json:"-"` // one line of JSON, without its newline
	Signatures []byte `json:"-"` // nil when it is not signed
	Revision   int64  `json:"-"` // of its last write
}

// Sign makes armored signatures over a record, for one namespace.
type Sign func(ctx context.Context, ns trust.Namespace, record []byte) (signatures []byte, err error)

// Document joins a record and its signature. Without sign the record stays unsigned.
func (sign Sign) Document(ctx context.Context, ns trust.Namespace, record []byte) (string, error) {
	var signatures []byte
	if sign != nil {
		var err error
		if signatures, err = sign(ctx, ns, record); err != nil {
			return "", err
		}
	}
	return string(trust.Join(record, signatures)), nil
}

// same returns an error if a release of the same version has another tree.
func (r Release) same(other Release) error {
	if r.Content.Tree == other.Content.Tree {
		return nil
	}
	remedy := "a release never changes: publish this one under a new version"
	switch {
	case !r.Beside(other):
		remedy = fmt.Sprintf("it is of another repository (%s): give this repository a name and versions of its own, as in --version %s+NAME", cmp.Or(r.Origin(), "no environments"), other.Version)
	case other.Repository() == "" && (r.FirstCommit == "" || other.FirstCommit == ""): // names of environments alone prove little
		remedy += fmt.Sprintf(", or as %s+NAME if it is of another repository", other.Version)
	}
	return fmt.Errorf("it is published already, with another tree (%.12s, not %.12s)\n%s", r.Content.Tree, other.Content.Tree, remedy)
}

// UnreadableReleases contains the unreadable records of a list of releases or agents, each an *UnreadableError.
type UnreadableReleases struct {
	Versions []string // by their keys
	Errors   []error
}

func (e *UnreadableReleases) Error() string {
	return "cannot list all releases: " + strings.ReplaceAll(errors.Join(e.Errors...).Error(), "\n", "; ")
}

func (e *UnreadableReleases) Unwrap() []error { return e.Errors }

// Target returns the release as part of a target.
func (r Release) Target() model.Target {
	return model.Target{Release: r.Version, Tree: r.Content.Tree}
}

// CompareVersions orders two versions like hashicorp/go-version. It orders any other string by its bytes.
func CompareVersions(a, b string) int {
	va, errA := ParseVersion(a)
	vb, errB := ParseVersion(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return va.Compare(vb)
}

// Withdrawal is an operator's decision that no node takes a release from now on. Rollbacks to it stay possible.
type Withdrawal struct {
	By  string      `json:"by"`
	Why model.Prose `json:"why,omitempty"`
	At  time.Time   `json:"at"`
}

// canonical is the spelling of a version: MAJOR.MINOR.PATCH[-PRE][+REPOSITORY], where the repository is what https://semver.org calls
// build metadata: it has no rank. Go-version also accepts 1.0, v1.0.0 and 01.0.0, which would be one version under several keys.
var canonical = pattern.Lazy(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-` + preRelease + `(\.` + preRelease + `)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

const preRelease = `(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)`

// ParseVersion parses a release's version as hashicorp/go-version orders it. A version over 64 bytes or not in
// canonical spelling is an error.
func ParseVersion(v string) (*version.Version, error) {
	if len(v) > 64 {
		return nil, fmt.Errorf("cannot use version %.64q…: it is longer than 64 bytes", v)
	}
	parsed, err := version.NewVersion(v)
	if err == nil && canonical().MatchString(v) {
		return parsed, nil
	}
	hint := ""
	if err == nil && len(parsed.Segments()) == 3 {
		meant := parsed.Core().String()
		if pre := strings.Trim(parsed.Prerelease(), "-"); pre != "" {
			meant += "-" + pre
		}
		if name := parsed.Metadata(); name != "" {
			meant += "+" + name
		}
		if canonical().MatchString(meant) {
			hint = "\ndid you mean " + meant + "?"
		}
	}
	return nil, fmt.Errorf("cannot use version %q: it is not like 1.4.0 or 1.4.0-rc1%s", v, hint)
}

// Put publishes a record whose objects are already stored, and the delta that leads to it (nil for none). It writes
// both in one transaction, and only while p is held. If the version exists with the same tree, it changes nothing and
// returns created false. Another tree is an error. ErrConflict means that another release already follows the previous
// one: the caller must rebuild after that release.
func (s *Releases) Put(ctx context.Context, p *Publishing, r Release, delta []byte, sign Sign) (created bool, err error) {
	if _, err := ParseVersion(r.Version); err != nil {
		return false, err
	}
	chain := r.Content.Chain
	switch {
	case (delta == nil) != (chain.Delta == nil):
		return false, fmt.Errorf("cannot publish %s: its record and its delta do not match", r.Version)
	case len(delta) > MaxValueBytes:
		return false, fmt.Errorf("cannot publish %s: its delta's %d bytes are more than the %d of one value", r.Version, len(delta), MaxValueBytes)
	}
	b := etcd.If()
	if chain.Seq > 0 { // also without a delta: two releases at one position would be indistinguishable
		position := s.db.Keys.Delta(chain.Line, chain.Seq)
		b.If(etcd.Same(position, 0)).Op(clientv3.OpPut(position, string(delta)))
	} else { // a pruned version may be published again, but its line must not continue from another tree
		b.If(etcd.NothingBelow(s.db.Keys.Line(chain.Line)))
	}
	if err := s.unnamed(ctx, b, r); err != nil {
		return false, fmt.Errorf("cannot publish %s: %w", r.Version, err)
	}
	created, err = s.publish(ctx, p, b, s.db.Keys.Release(r.Version), trust.Release, r, sign, func(kv *etcd.KV) error {
		have, err := s.DecodeRelease(kv)
		if err == nil {
			err = have.same(r)
		}
		return err
	})
	if errors.Is(err, etcd.ErrConflict) {
		err = fmt.Errorf("position %d of line %s is taken: %w", chain.Seq, chain.Line, err)
		if chain.Seq == 0 && r.PuppetEnvironment == "" { // nothing follows a reference release: another release appeared meanwhile
			err = errors.New("a release of this version was pruned, and others that follow it are still there\npublish this one under a new version")
		}
	}
	return created, etcd.Wrap(err, "cannot publish %s", r.Version)
}

// unnamed guards that no other release names the environment of the Puppet server, and returns an error if one does: one name belongs
// to one version. Otherwise a rollback from one to the other would change nothing.
func (s *Releases) unnamed(ctx context.Context, b *etcd.Batch, r Release) error {
	if r.PuppetEnvironment == "" {
		return nil
	}
	before, err := s.db.Get(ctx, s.db.Keys.Releases(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	all, err := s.List(ctx)
	if err != nil && !errors.As(err, new(*UnreadableReleases)) {
		return err
	}
	for _, other := range all {
		if other.PuppetEnvironment == r.PuppetEnvironment && other.Version != r.Version {
			return fmt.Errorf("release %s names environment %s of the Puppet server already\n"+
				"deploy the new code on the server as another environment, for example %s, and publish that one",
				other.Version, r.PuppetEnvironment, r.PuppetEnvironment+"_"+strings.NewReplacer(".", "_", "-", "_").Replace(r.Version))
		}
	}
	b.If(etcd.NothingNewBelow(s.db.Keys.Releases(), before.Header.Revision))
	return nil
}

// Published reports whether a release exists with this tree. Another tree is an error, as for Put.
func (s *Releases) Published(ctx context.Context, r Release) (bool, error) {
	have, err := s.Get(ctx, r.Version)
	switch {
	case errors.Is(err, etcd.ErrNotFound):
		return false, nil
	case err == nil:
		err = have.same(r)
	}
	return err == nil, etcd.Wrap(err, "cannot publish %s", r.Version)
}

// publish adds a signed record at a key to a batch, and commits it while p is held. It does nothing if there is a
// record: published then judges that one. ErrConflict means that another guard of the batch failed.
func (s *Releases) publish(
	ctx context.Context, p *Publishing, b *etcd.Batch, key string, ns trust.Namespace, record any, sign Sign, published func(*etcd.KV) error,
) (created bool, err error) {
	there, err := s.db.Get(ctx, key)
	if err != nil {
		return false, err
	}
	if len(there.Kvs) > 0 { // before a hardware key is touched in vain
		return false, published(there.Kvs[0])
	}
	text, err := etcd.Encode(record)
	if err != nil {
		return false, err
	}
	document, err := sign.Document(ctx, ns, []byte(text))
	if err != nil {
		return false, err
	}
	if len(document) > MaxValueBytes {
		return false, fmt.Errorf("its record's %d bytes are more than the %d of one value", len(document), MaxValueBytes)
	}
	b.If(etcd.Same(key, 0), p.lock.Standing()).Op(clientv3.OpPut(key, document))
	resp, err := s.db.Run(ctx, b, clientv3.OpGet(key), clientv3.OpGet(p.lock.Key(), clientv3.WithCountOnly()))
	if errors.Is(err, etcd.ErrUnknownOutcome) {
		if there, again := s.db.Get(ctx, key); again == nil && len(there.Kvs) > 0 && string(there.Kvs[0].Value) == document {
			return true, nil // only the answer was lost
		}
		err = fmt.Errorf("%w\n%w: publish it again, which changes nothing if it was published", err, etcd.ErrReadAgain)
	}
	switch {
	case err != nil:
		return false, err
	case resp.Succeeded:
		return true, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return false, published(kvs[0])
	}
	if resp.Responses[1].GetResponseRange().Count == 0 {
		return false, errors.New("this publish lost its lock for a minute, and a prune may have removed objects that it needs\npublish it again")
	}
	return false, etcd.ErrConflict
}

// DecodeRelease reads a release's document. A record that was copied from another version's key is unreadable.
func (s *Releases) DecodeRelease(kv *etcd.KV) (SignedRelease, error) {
	key, r := string(kv.Key), SignedRelease{Revision: kv.ModRevision}
	r.Record, r.Signatures = trust.Split(kv.Value)
	err := etcd.Decode(key, r.Record, &r.Release)
	if err == nil && s.db.Keys.Release(r.Version) != key {
		err = &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is the record of release %.64q", r.Version)}
	}
	var unreadable *etcd.UnreadableError
	if errors.As(err, &unreadable) && !unreadable.Newer {
		unreadable.Next = fmt.Sprintf("restore it from a backup, or delete it: `pulley doctor --delete %s`", key)
	}
	if err != nil {
		return SignedRelease{}, err
	}
	return r, nil
}

// Get reads one release. It returns ErrNotFound if the version does not exist.
func (s *Releases) Get(ctx context.Context, v string) (SignedRelease, error) {
	r, _, err := s.GetWithDelta(ctx, v, "", 0)
	return r, err
}

// GetWithDelta reads in one request a release and the delta to position seq of a line, which may be all that a node
// lacks. The delta is nil without a line, or if it does not exist. The record of the release says whether the delta
// belongs to it.
func (s *Releases) GetWithDelta(ctx context.Context, v, line string, seq int64) (r SignedRelease, delta []byte, err error) {
	key := s.db.Keys.Release(v)
	ops := []clientv3.Op{clientv3.OpGet(key)}
	if line != "" {
		ops = append(ops, clientv3.OpGet(s.db.Keys.Delta(line, seq)))
	}
	resp, err := s.db.Txn(ctx, nil, ops, nil)
	if err != nil {
		return SignedRelease{}, nil, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return SignedRelease{}, nil, fmt.Errorf("cannot find release %s: %w\n`pulley releases` lists what is published", v, etcd.ErrNotFound)
	}
	if r, err = s.DecodeRelease(kvs[0]); err != nil {
		return SignedRelease{}, nil, err
	}
	if line != "" {
		if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 && len(kvs[0].Value) > 0 {
			delta = kvs[0].Value
		}
	}
	return r, delta, nil
}

// List lists every release in the order of versions. With unreadable records it returns the others
// and *UnreadableReleases. A caller that needs all releases, such as a prune, must stop there.
func (s *Releases) List(ctx context.Context) ([]SignedRelease, error) {
	var all []SignedRelease
	var unreadable UnreadableReleases
	err := s.db.Scan(ctx, s.db.Keys.Releases(), func(rest string, kv *etcd.KV) error {
		r, err := s.DecodeRelease(kv)
		if err != nil {
			unreadable.Versions, unreadable.Errors = append(unreadable.Versions, etcd.Unescape(rest)), append(unreadable.Errors, err)
			return nil
		}
		all = append(all, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list releases: %w", err)
	}
	slices.SortStableFunc(all, func(a, b SignedRelease) int { return CompareVersions(a.Version, b.Version) })
	if len(unreadable.Errors) > 0 {
		return all, &unreadable
	}
	return all, nil
}

// Names lists versions that begin with a prefix, at most limit, the newest of them first.
func (s *Releases) Names(ctx context.Context, prefix string, limit int64) ([]string, error) {
	versions, err := s.db.Names(ctx, s.db.Keys.Releases(), prefix, limit)
	slices.SortFunc(versions, func(a, b string) int { return CompareVersions(b, a) })
	return versions, err
}

// Sign replaces the signatures of a release by a new one, or adds it to those of other keys. The record itself stays
// byte for byte. It writes nothing that nodes would refuse to read. ErrConflict means a concurrent signature or prune.
func (s *Releases) Sign(ctx context.Context, v string, sign Sign, add bool) error {
	r, err := s.Get(ctx, v)
	if err != nil {
		return err
	}
	earlier, hint := r.Signatures, "\n--replace removes them"
	if !add {
		earlier, hint = nil, ""
	}
	err = s.sign(ctx, s.db.Keys.Release(v), r.Revision, trust.Release, r.Record, earlier, sign, hint)
	return etcd.Wrap(err, "cannot sign release %s", v)
}

// sign adds a signature to the earlier ones of a record. An error about those ends with hint.
func (s *Releases) sign(
	ctx context.Context, key string, revision int64, ns trust.Namespace, record, earlier []byte, sign Sign, hint string,
) error {
	signatures, err := sign(ctx, ns, record)
	if err != nil {
		return err
	}
	if signatures, err = trust.AddSignatures(earlier, signatures); err != nil {
		return fmt.Errorf("%w%s", err, hint)
	}
	document := trust.Join(record, signatures)
	if len(document) > MaxValueBytes {
		return fmt.Errorf("with one signature more its %d bytes are more than the %d of one value", len(document), MaxValueBytes)
	}
	return s.db.Commit(ctx, etcd.If(etcd.Same(key, revision)).Op(clientv3.OpPut(key, string(document))))
}

// Withdraw withdraws a release. A second withdrawal replaces the first: the newest reason counts.
func (s *Releases) Withdraw(ctx context.Context, version string, w Withdrawal) error {
	k := s.db.Keys
	err := s.db.Commit(ctx, etcd.If(etcd.Exists(k.Release(version))).Put(k.Withdrawal(version), w))
	if errors.Is(err, etcd.ErrConflict) {
		err = etcd.ErrNotFound
	}
	return etcd.Wrap(err, "cannot withdraw release %s", version)
}

// Reinstate ends the withdrawal of a release. It returns ErrNotFound if there is none.
func (s *Releases) Reinstate(ctx context.Context, version string) error {
	key := s.db.Keys.Withdrawal(version)
	err := s.db.Commit(ctx, etcd.If(etcd.Exists(key)).Delete(key))
	if errors.Is(err, etcd.ErrConflict) {
		err = etcd.ErrNotFound
	}
	return etcd.Wrap(err, "cannot end the withdrawal of release %s", version)
}

// Withdrawals lists the withdrawn releases by version. An unreadable withdrawal counts: it was one.
func (s *Releases) Withdrawals(ctx context.Context) (map[string]Withdrawal, error) {
	all := map[string]Withdrawal{}
	err := s.db.Scan(ctx, s.db.Keys.Withdrawals(), func(rest string, kv *etcd.KV) error {
		var w Withdrawal
		_ = etcd.Decode(string(kv.Key), kv.Value, &w)
		all[etcd.Unescape(rest)] = w
		return nil
	})
	return all, etcd.Wrap(err, "cannot list the withdrawn releases")
}

package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/mirror"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

// Problem is the problem of a value in etcd.
type Problem string

// The problems.
const (
	Missing    Problem = "missing"
	Damaged    Problem = "damaged"     // its bytes do not match the hash in its name or in another value
	Unreadable Problem = "unreadable"  // Detail: it cannot be decoded
	NoTree     Problem = "no_tree"     // Detail: the values of a release do not produce its tree
	ForeignKey Problem = "foreign_key" // it is not a key of Pulley
	Refused    Problem = "signature_refused"
)

// Remedy is the operator's solution of a problem.
type Remedy string

// The remedies.
const (
	SignRelease Remedy = "sign_release"
	SignData    Remedy = "sign_data"
	PutBack     Remedy = "put_back" // restore from a mirror's files or a backup
	Other       Remedy = "other"    // see the text
)

// Finding is one value with a problem.
type Finding struct {
	Key      string         `json:"key"` // below the prefix of all keys
	Problem  Problem        `json:"problem"`
	Detail   string         `json:"detail,omitempty"` // text for operators: the cause
	Refusal  *trust.Refusal `json:"refusal,omitempty"`
	Releases []string       `json:"releases"` // releases that cannot be installed because of it
	Remedy   Remedy         `json:"remedy"`

	next string // the remedy if it is Other
}

// String returns the problem as a sentence.
func (f Finding) String() string {
	switch {
	case f.Refusal != nil:
		return "signature: " + f.Refusal.Error()
	case f.Problem == Missing:
		return "missing"
	case f.Problem == Damaged:
		return "damaged: its bytes do not match its hash"
	case f.Problem == ForeignKey:
		return "not a key of pulley"
	}
	first, _, _ := strings.Cut(f.Detail, "\n")
	return first
}

// Audit is the result of Verify.
type Audit struct {
	Releases    int        `json:"releases"`
	Generations int        `json:"generations"`
	Objects     int        `json:"objects"`
	DeltaCount  int        `json:"deltas"`
	Layers      int        `json:"layers"`
	Signatures  int        `json:"signatures"` // valid ones; 0 without signers
	Bytes       int64      `json:"bytes"`      // of all values above
	Unused      int        `json:"unused"`     // objects that no release uses
	Findings    []*Finding `json:"findings"`
}

// Remedies returns the operator's next steps without duplicates.
func (a Audit) Remedies() []string {
	var lines []string
	add := func(line string) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, f := range a.Findings {
		if f.Remedy == PutBack && len(f.Releases) > 0 {
			add("nodes that have such a release on disk keep it; other nodes refuse it and stay on their release")
			add("promote an undamaged release")
		}
	}
	for _, f := range a.Findings {
		switch f.Remedy {
		case SignRelease:
			add("sign the releases again: pulley releases sign VERSION --sign-key FILE")
		case SignData:
			add("set live data again with --sign-key FILE")
		case PutBack:
			add("put the keys back from a mirror's files or a backup of etcd; if they are missing, publish the folder as a new version")
		default:
			add(f.next)
		}
	}
	return lines
}

// Trust selects the signatures that an audit verifies: those for one environment.
type Trust struct {
	Signers     *trust.Signers
	Environment model.Ref
	Now         time.Time
}

// Verify checks the values of these releases in etcd like a node does, each value once. Without versions it checks all
// releases, all programs of the agent, unused objects, and live data. Signatures may be nil.
func Verify(ctx context.Context, s *etcd.DB, versions []string, signatures *Trust, r Reporter) (Audit, error) {
	releases, err := releasesOf(ctx, release.In(s), versions)
	var unreadable *release.UnreadableReleases
	if err != nil && !errors.As(err, &unreadable) {
		return Audit{}, err
	}
	// Sort by line and position: neighbours share values.
	slices.SortStableFunc(releases, func(a, b release.SignedRelease) int {
		x, y := a.Content.Chain, b.Content.Chain
		return cmp.Or(strings.Compare(x.Line, y.Line), cmp.Compare(x.Seq, y.Seq))
	})
	a := &audit{db: s, trust: signatures, r: r, byKey: map[string]*Finding{}, checked: map[string]bool{}, cache: map[string][]byte{}}
	a.Findings = []*Finding{}
	if unreadable != nil {
		for i, version := range unreadable.Versions {
			a.unreadable(version, unreadable.Errors[i])
		}
	}
	for _, r := range releases {
		a.subject = r.Version
		if err := a.release(ctx, r); err != nil {
			return Audit{}, err
		}
	}
	if len(versions) > 0 {
		return a.Audit, nil
	}
	for _, part := range []struct {
		subject string
		check   func(context.Context) error
	}{{"the agent's programs", a.programs}, {"objects without a release", a.unused}, {"live data", a.data}} {
		a.subject = part.subject
		if err := part.check(ctx); err != nil {
			return Audit{}, err
		}
	}
	return a.Audit, nil
}

// releasesOf reads these releases, each once; without versions, all releases. Like the list of all, it returns the
// readable releases together with *release.UnreadableReleases.
func releasesOf(ctx context.Context, s *release.Releases, versions []string) ([]release.SignedRelease, error) {
	if len(versions) == 0 {
		return s.List(ctx)
	}
	var all []release.SignedRelease
	var unreadable release.UnreadableReleases
	for i, version := range versions {
		if slices.Contains(versions[:i], version) {
			continue
		}
		r, err := s.Get(ctx, version)
		var one *etcd.UnreadableError
		switch {
		case errors.As(err, &one):
			unreadable.Versions, unreadable.Errors = append(unreadable.Versions, version), append(unreadable.Errors, err)
		case err != nil:
			return nil, err
		default:
			all = append(all, r)
		}
	}
	if len(unreadable.Errors) > 0 {
		return all, &unreadable
	}
	return all, nil
}

// maxAuditCache limits the bytes of values that an audit keeps, because neighbours on a line share a base.
const maxAuditCache = 64 << 20

// audit is a running Verify. It is a content.Source that checks and counts each value once.
type audit struct {
	Audit
	db      *etcd.DB
	trust   *Trust
	r       Reporter
	subject string

	byKey   map[string]*Finding
	checked map[string]bool // counted keys
	cache   map[string][]byte
	cached  int64
}

// find adds a finding with the affected release. If the key has a finding already, find adds only the release.
func (a *audit) find(key string, problem Problem, detail, release string) *Finding {
	f := a.byKey[key]
	if f == nil {
		f = &Finding{Key: key, Problem: problem, Detail: detail, Releases: []string{}, Remedy: PutBack}
		a.byKey[key] = f
		a.Findings = append(a.Findings, f)
	}
	if release != "" && !slices.Contains(f.Releases, release) {
		f.Releases = append(f.Releases, release)
	}
	return f
}

// signature verifies the signatures of a record. A refusal is a separate finding, in addition to others about the
// record.
func (a *audit) signature(ns trust.Namespace, key string, record, signatures []byte, release string, remedy Remedy) {
	_, err := a.trust.Signers.Verify(ns, a.trust.Environment.Environment, record, signatures, a.trust.Now)
	var refused *trust.Refusal
	if !errors.As(err, &refused) {
		a.Signatures++
		return
	}
	f := &Finding{Key: key, Problem: Refused, Refusal: refused, Releases: []string{}, Remedy: remedy}
	if release != "" {
		f.Releases = append(f.Releases, release)
	}
	a.Findings = append(a.Findings, f)
}

// unreadable adds a finding about a record that cannot be decoded.
func (a *audit) unreadable(version string, err error) {
	a.Releases++
	detail := err.Error()
	var unreadable *etcd.UnreadableError
	if errors.As(err, &unreadable) {
		detail = unreadable.Problem
	}
	f := a.find("releases/"+version, Unreadable, detail, version)
	if unreadable != nil && unreadable.Next != "" {
		f.Remedy, f.next = Other, unreadable.Next
	}
}

// errFound reports a problem that already has a finding.
var errFound = errors.New("it is missing or damaged")

// Object reads and checks an object.
func (a *audit) Object(ctx context.Context, hash string) ([]byte, error) {
	key, err := mirror.ObjectName(hash)
	if err != nil {
		return nil, err
	}
	read := func() ([]byte, error) { return release.In(a.db).Object(ctx, hash) }
	return a.read(ctx, key, &a.Objects, read, func(b []byte) bool { return content.HashOf(b) == hash })
}

// Deltas reads deltas. The caller checks them, because only the caller has their hashes.
func (a *audit) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for seq := from; seq <= to; seq++ {
		b, err := a.delta(ctx, line, seq, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func (a *audit) delta(ctx context.Context, line string, seq int64, want *content.Object) ([]byte, error) {
	key, err := mirror.DeltaName(line, seq)
	if err != nil {
		return nil, err
	}
	return a.read(ctx, key, &a.DeltaCount, func() ([]byte, error) {
		one, err := release.In(a.db).Deltas(ctx, line, seq, seq)
		if err != nil {
			return nil, err
		}
		return one[0], nil
	}, func(b []byte) bool {
		return want == nil || content.HashOf(b) == want.Hash && int64(len(b)) == want.Size
	})
}

// read returns a value from etcd or from memory. It adds a finding if the value is not good.
func (a *audit) read(ctx context.Context, key string, count *int, read func() ([]byte, error), good func([]byte) bool) ([]byte, error) {
	if a.byKey[key] != nil {
		return nil, errFound
	}
	b, ok := a.cache[key]
	if !ok {
		var err error
		b, err = read()
		switch {
		case fatal(ctx, err):
			return nil, err
		case errors.Is(err, etcd.ErrNotFound):
			a.find(key, Missing, "", "")
			return nil, errFound
		case err != nil:
			a.find(key, Unreadable, err.Error(), "")
			return nil, errFound
		}
		a.keep(key, b)
	}
	if !a.checked[key] {
		a.checked[key] = true
		*count++
		a.Bytes += int64(len(b))
		a.progress()
	}
	if !good(b) {
		a.find(key, Damaged, "", "")
		return nil, errFound
	}
	return b, nil
}

func (a *audit) progress() {
	a.r.Progress(Progress{Step: Verifying, Subject: a.subject, Values: a.Objects + a.DeltaCount, Bytes: a.Bytes})
}

func (a *audit) keep(key string, b []byte) {
	if a.cached+int64(len(b)) > maxAuditCache {
		clear(a.cache)
		a.cached = 0
	}
	a.cache[key] = b
	a.cached += int64(len(b))
}

// release checks every value that an installation of the release needs. It checks them one by one to name each bad
// value, and then checks that they produce the tree.
func (a *audit) release(ctx context.Context, r release.SignedRelease) error {
	a.Releases++
	good := true
	concerned := func(key string, err error) error {
		if err == nil || fatal(ctx, err) {
			return err
		}
		good = false
		if a.byKey[key] != nil {
			a.find(key, "", "", r.Version)
		} else {
			a.find("releases/"+r.Version, NoTree, err.Error(), r.Version)
		}
		return nil
	}
	named := []content.Object{r.Content.Base.Index}
	if all, err := content.References(ctx, a, r.Content); err == nil {
		named = all
	} else if fatal(ctx, err) {
		return err
	} else if index, nameErr := mirror.ObjectName(r.Content.Base.Index.Hash); nameErr != nil || a.byKey[index] == nil {
		good = false
		a.find("releases/"+r.Version, NoTree, err.Error(), r.Version)
	}
	for _, o := range named {
		_, err := a.Object(ctx, o.Hash)
		if err := concerned("content/"+o.Hash, err); err != nil {
			return err
		}
	}
	chain := r.Content.Chain
	for seq := r.Content.Base.Seq + 1; seq <= chain.Seq; seq++ {
		var want *content.Object
		if seq == chain.Seq {
			want = chain.Delta
		}
		key, err := mirror.DeltaName(chain.Line, seq)
		if err == nil {
			_, err = a.delta(ctx, chain.Line, seq, want)
		}
		if err := concerned(key, err); err != nil {
			return err
		}
	}
	if chain.Delta != nil && chain.Seq <= r.Content.Base.Seq {
		if err := a.shortcut(ctx, chain); err != nil {
			return err
		}
	}
	if good {
		if err := concerned("releases/"+r.Version, content.Audit(ctx, a, r.Content)); err != nil {
			return err
		}
	}
	if a.trust != nil {
		a.signature(trust.Release, "releases/"+r.Version, r.Record, r.Signatures, r.Version, SignRelease)
	}
	return nil
}

// shortcut checks the delta to a release with its own base. An installation does not need this delta, and a prune may
// have removed it.
func (a *audit) shortcut(ctx context.Context, chain content.Chain) error {
	_, err := release.In(a.db).Deltas(ctx, chain.Line, chain.Seq, chain.Seq)
	switch {
	case fatal(ctx, err):
		return err
	case errors.Is(err, etcd.ErrNotFound):
		return nil
	}
	if _, err := a.delta(ctx, chain.Line, chain.Seq, chain.Delta); fatal(ctx, err) {
		return err
	}
	return nil
}

// unused checks the objects that no release uses: leftovers, and objects of a running publish.
func (a *audit) unused(ctx context.Context) error {
	var rest []string
	err := release.In(a.db).Objects(ctx, func(hash string) error {
		if !a.checked["content/"+hash] && a.byKey["content/"+hash] == nil {
			rest = append(rest, hash)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, hash := range rest {
		if _, err := a.Object(ctx, hash); fatal(ctx, err) {
			return err
		}
		if _, nameErr := mirror.ObjectName(hash); nameErr != nil {
			a.find("content/"+hash, ForeignKey, nameErr.Error(), "")
		}
	}
	a.Unused = len(rest)
	return nil
}

// programs reads the complete programs of all versions of pulley-agent.
func (a *audit) programs(ctx context.Context) error {
	all, err := release.In(a.db).Agents(ctx)
	var unreadable *release.UnreadableReleases
	if errors.As(err, &unreadable) {
		for i, version := range unreadable.Versions {
			a.find("agents/"+version, Unreadable, unreadable.Errors[i].Error(), "")
		}
	} else if err != nil {
		return err
	}
	for _, r := range all {
		for platform, p := range r.Platforms {
			if err := p.CopyTo(ctx, io.Discard, a); fatal(ctx, err) {
				return err
			} else if err != nil {
				a.find("agents/"+r.Version, Unreadable, platform+": "+err.Error(), "")
			}
		}
	}
	return nil
}

// data checks the generations of live data in the history and the targets of each environment, and their layers.
func (a *audit) data(ctx context.Context) error {
	names, err := specs.In(a.db).List(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // not a key of Pulley
		}
		err = a.dataOf(ctx, ref)
		if errors.As(err, new(*etcd.UnreadableError)) { // it stops the check of no others
			a.find("environments/"+name, Unreadable, err.Error(), "run `pulley doctor`: it names the command that deletes the key")
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) dataOf(ctx context.Context, ref model.Ref) error {
	digests, wanted, err := generationsOf(ctx, a.db, ref)
	if err != nil {
		return err
	}
	layers := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(digests)) {
		key := fmt.Sprintf("environments/%s/data/generations/%012d", ref, n)
		g, err := targets.In(a.db).Generation(ctx, ref.String(), n)
		switch {
		case fatal(ctx, err):
			return err
		case errors.Is(err, etcd.ErrNotFound) && !wanted[n]:
			continue // pruned
		case errors.Is(err, etcd.ErrNotFound):
			a.find(key, Missing, "", "")
			continue
		case err != nil:
			a.find(key, Unreadable, err.Error(), "")
			continue
		}
		a.Generations++
		a.Bytes += int64(len(g.Record))
		if digest := digests[n]; digest != "" && hieradata.Digest(g.Record) != digest {
			a.find(key, Damaged, "", "")
		}
		if a.trust != nil && ref == a.trust.Environment {
			a.signature(trust.Data, key, g.Record, g.Signatures, "", SignData)
		}
		for _, digest := range g.Layers {
			layers[digest] = true
		}
	}
	for digest := range layers {
		key := fmt.Sprintf("environments/%s/data/layers/%s", ref, digest)
		b, err := targets.In(a.db).Layer(ctx, ref.String(), digest)
		switch {
		case fatal(ctx, err):
			return err
		case errors.Is(err, etcd.ErrNotFound):
			a.find(key, Missing, "", "")
		case err != nil:
			a.find(key, Unreadable, err.Error(), "")
		default:
			a.Layers++
			a.Bytes += int64(len(b))
			a.progress()
		}
	}
	return nil
}

// generationsOf returns the digests of the generations in an environment's history and targets, and the generations
// that a target uses now.
func generationsOf(ctx context.Context, s *etcd.DB, ref model.Ref) (digests map[model.Generation]string, wanted map[model.Generation]bool, err error) {
	d, err := targets.In(s).Desires(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	history, err := targets.In(s).HistoryOf(ctx, ref, d)
	if err != nil {
		return nil, nil, err
	}
	digests, wanted = map[model.Generation]string{}, map[model.Generation]bool{}
	name := func(t model.Target) {
		if t.Data > 0 {
			digests[t.Data] = t.DataDigest
		}
	}
	for _, c := range history {
		name(c.Before)
		name(c.After)
	}
	for _, t := range slices.Concat([]model.Target{d.Default}, slices.Collect(maps.Values(d.Roles)), slices.Collect(maps.Values(d.Nodes))) {
		name(t)
		wanted[t.Data] = true
	}
	return digests, wanted, nil
}

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"pulley/agent"
	"pulley/internal/content"
	"pulley/internal/mirror"
	"pulley/internal/store"
)

// auditCache bounds what an audit keeps of what it has read: neighbours on a line share a base.
const auditCache = 64 << 20

// audit reads what is published, each value once, and keeps a list of what is wrong. It is a content.Source of what it
// reads.
type audit struct {
	store *store.Store
	shown func() // called after each value

	result   auditResult
	problems map[string]*auditProblem // by key
	checked  map[string]bool          // keys that were counted
	cache    map[string][]byte
	cached   int64
}

// auditResult is what -o json has.
type auditResult struct {
	Releases    int             `json:"releases"`
	Generations int             `json:"generations"`
	Objects     int             `json:"objects"`
	Deltas      int             `json:"deltas"`
	Layers      int             `json:"layers"`
	Signatures  int             `json:"signatures"` // that count; 0 when they were not asked about
	Bytes       int64           `json:"bytes"`      // of all these
	Unused      int             `json:"unused"`     // objects that no release names
	Problems    []*auditProblem `json:"problems"`
}

// auditProblem is one value that is not what it has to be.
type auditProblem struct {
	Key      string   `json:"key"` // below the prefix of all keys
	Problem  string   `json:"problem"`
	Releases []string `json:"releases"` // that can't be installed for it

	next string // what to do about it; "" for what is missing or damaged, and may be put back
}

func newAudit(s *store.Store, shown func()) *audit {
	return &audit{
		store: s, shown: shown, result: auditResult{Problems: []*auditProblem{}},
		problems: map[string]*auditProblem{}, checked: map[string]bool{}, cache: map[string][]byte{},
	}
}

// note keeps a problem, and whom it concerns.
func (a *audit) note(key, problem, release string) {
	p := a.problems[key]
	if p == nil {
		p = &auditProblem{Key: key, Problem: problem, Releases: []string{}}
		a.problems[key] = p
		a.result.Problems = append(a.result.Problems, p)
	}
	if release != "" && !slices.Contains(p.Releases, release) {
		p.Releases = append(p.Releases, release)
	}
}

// refused keeps a signature that does not count: beside what may be wrong with the value itself.
func (a *audit) refused(key string, why error, release, next string) {
	p := &auditProblem{Key: key, Problem: "signature: " + why.Error(), Releases: []string{}, next: next}
	if release != "" {
		p.Releases = append(p.Releases, release)
	}
	a.result.Problems = append(a.result.Problems, p)
}

// unreadable keeps a record that can't be read.
func (a *audit) unreadable(version string, err error) {
	a.result.Releases++
	key, problem := "releases/"+version, err.Error()
	var what *store.UnreadableError
	if errors.As(err, &what) {
		problem = what.Problem
	}
	a.note(key, problem, version)
	if what != nil {
		a.problems[key].next = what.Next
	}
}

// errNoted says that what is wrong is on the list already.
var errNoted = errors.New("it is missing or damaged")

// fatal says whether an error is about the audit, not about what it reads.
func fatal(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, agent.ErrUnreachable))
}

// Object reads and checks an object.
func (a *audit) Object(ctx context.Context, hash string) ([]byte, error) {
	key, err := mirror.ObjectName(hash)
	if err != nil {
		return nil, err
	}
	return a.read(ctx, key, &a.result.Objects, func() ([]byte, error) { return a.store.Object(ctx, hash) }, func(b []byte) string {
		if hashOf(b) != hash {
			return "damaged: its bytes are not what its name says"
		}
		return ""
	})
}

// Deltas reads deltas. What they have to be is checked by whoever knows their hashes.
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
	return a.read(ctx, key, &a.result.Deltas, func() ([]byte, error) {
		one, err := a.store.Deltas(ctx, line, seq, seq)
		if err != nil {
			return nil, err
		}
		return one[0], nil
	}, func(b []byte) string {
		if want != nil && (hashOf(b) != want.Hash || int64(len(b)) != want.Size) {
			return "damaged: its bytes are not what the record of its release says"
		}
		return ""
	})
}

// read returns a value, from etcd or from memory, and notes what is wrong with it.
func (a *audit) read(ctx context.Context, key string, count *int, read func() ([]byte, error), wrong func([]byte) string) ([]byte, error) {
	if a.problems[key] != nil {
		return nil, errNoted
	}
	b, ok := a.cache[key]
	if !ok {
		var err error
		b, err = read()
		switch {
		case fatal(ctx, err):
			return nil, err
		case errors.Is(err, store.ErrNotFound):
			a.note(key, "missing", "")
			return nil, errNoted
		case err != nil:
			a.note(key, err.Error(), "")
			return nil, errNoted
		}
		a.keep(key, b)
	}
	if !a.checked[key] {
		a.checked[key] = true
		*count++
		a.result.Bytes += int64(len(b))
		a.shown()
	}
	if problem := wrong(b); problem != "" {
		a.note(key, problem, "")
		return nil, errNoted
	}
	return b, nil
}

func (a *audit) keep(key string, b []byte) {
	if a.cached+int64(len(b)) > auditCache {
		clear(a.cache)
		a.cached = 0
	}
	a.cache[key] = b
	a.cached += int64(len(b))
}

// release checks every value that installing a release takes, one by one, so that all that is wrong is named; and then that
// together they make its tree.
func (a *audit) release(ctx context.Context, r store.SignedRelease) error {
	a.result.Releases++
	whole := true
	concerned := func(key string, err error) error {
		if err == nil {
			return nil
		}
		if fatal(ctx, err) {
			return err
		}
		whole = false
		if a.problems[key] != nil {
			a.note(key, "", r.Version)
		} else {
			a.note("releases/"+r.Version, err.Error(), r.Version)
		}
		return nil
	}
	named := []content.Object{r.Content.Base.Index}
	if all, err := content.References(ctx, a, r.Content); err == nil {
		named = all
	} else if fatal(ctx, err) {
		return err
	} else if index, nameErr := mirror.ObjectName(r.Content.Base.Index.Hash); nameErr != nil || a.problems[index] == nil {
		whole = false
		a.note("releases/"+r.Version, err.Error(), r.Version)
	}
	for _, o := range named {
		_, err := a.Object(ctx, o.Hash)
		if err := concerned("content/"+o.Hash, err); err != nil {
			return err
		}
	}
	chain := r.Content.Chain
	for seq := r.Content.Base.Seq + 1; seq <= chain.Seq; seq++ {
		if err := a.leads(ctx, r, seq, nil, concerned); err != nil {
			return err
		}
	}
	switch {
	case chain.Delta == nil:
	case chain.Seq > r.Content.Base.Seq:
		if err := a.leads(ctx, r, chain.Seq, chain.Delta, concerned); err != nil {
			return err
		}
	default: // it is installed without; a prune may have removed it
		if err := a.shortcut(ctx, r); err != nil {
			return err
		}
	}
	if !whole {
		return nil
	}
	return concerned("releases/"+r.Version, content.Audit(ctx, a, r.Content))
}

func (a *audit) leads(ctx context.Context, r store.SignedRelease, seq int64, want *content.Object, concerned func(string, error) error) error {
	key, err := mirror.DeltaName(r.Content.Chain.Line, seq)
	if err == nil {
		_, err = a.delta(ctx, r.Content.Chain.Line, seq, want)
	}
	return concerned(key, err)
}

// shortcut checks the delta that leads to a release which has a base of its own.
func (a *audit) shortcut(ctx context.Context, r store.SignedRelease) error {
	chain := r.Content.Chain
	_, err := a.store.Deltas(ctx, chain.Line, chain.Seq, chain.Seq)
	switch {
	case fatal(ctx, err):
		return err
	case errors.Is(err, store.ErrNotFound):
		return nil
	}
	if _, err := a.delta(ctx, chain.Line, chain.Seq, chain.Delta); fatal(ctx, err) {
		return err
	}
	return nil
}

// unused checks the objects that no release names: leftovers, and what is being published at this moment.
func (a *audit) unused(ctx context.Context) error {
	var rest []string
	err := a.store.Objects(ctx, false, func(hash string, _ int64) error {
		if !a.checked["content/"+hash] && a.problems["content/"+hash] == nil {
			rest = append(rest, hash)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, hash := range rest {
		_, err := a.Object(ctx, hash)
		if fatal(ctx, err) {
			return err
		}
		if _, nameErr := mirror.ObjectName(hash); nameErr != nil {
			a.note("content/"+hash, fmt.Sprintf("no key of pulley's: %v", nameErr), "")
		}
	}
	a.result.Unused = len(rest)
	return nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

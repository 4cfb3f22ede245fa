package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// past is how far etcd was when this serve looked last, also an earlier process of it. An etcd that is behind it was restored, or set back by the
// copy of a disk: rollouts, jobs, removals and machines in it are old, and nothing may act on them.
type past struct {
	mu      sync.Mutex
	loaded  bool
	seen    targets.Moment
	written time.Time
	pending map[string]targets.Moment // environments that could not be marked, with how far they were
}

// pastInterval is the time between two writes of the file, if no operator acts. What else a serve that is killed forgets is at most that old.
const pastInterval = time.Minute

// past returns the file that remembers how far etcd was; "" for a serve without a data folder.
func (c Config) past() string {
	if c.Cluster && !c.Joins {
		return ""
	}
	return filepath.Join(c.DataDir, "reached")
}

// unlessBehind is a task that first looks whether etcd went back in time.
func (t *Tasks) unlessBehind(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := t.lookBack(ctx); err != nil {
			return err
		}
		return do(ctx)
	}
}

// rewound reports whether nothing may act on what etcd has of an environment, because etcd went back in time and no operator continued.
func (t *Tasks) rewound(ctx context.Context, ref model.Ref) (bool, error) {
	t.past.mu.Lock()
	_, pending := t.past.pending[ref.String()]
	t.past.mu.Unlock()
	if pending {
		return true, nil
	}
	return targets.In(t.DB).Rewound(ctx, ref)
}

// lookBack marks each environment whose etcd went back in time as restored, which pauses it until an operator continues. It repeats a mark that
// fails, for example of an environment that cannot be read: rewound reports that one until then.
func (t *Tasks) lookBack(ctx context.Context) error {
	p := &t.past
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.loaded {
		if err := p.load(t.Past); err != nil {
			t.Log.Warn("cannot read how far etcd was when serve ran last", "error", err)
		}
		p.loaded, p.pending = true, map[string]targets.Moment{}
	}
	refs, err := specs.In(t.DB).Named(ctx)
	if err != nil {
		return err
	}
	now, err := targets.In(t.DB).Moment(ctx, refs, p.seen)
	if err != nil {
		return err
	}
	if now.Revision < p.seen.Revision {
		for _, ref := range refs { // also those that cannot be read
			p.pending[ref.String()] = p.seen
		}
	}
	for _, name := range now.Behind(p.seen) {
		p.pending[name] = p.seen
	}
	marked := len(p.pending) > 0
	var problems []error
	for _, ref := range refs {
		if before, pending := p.pending[ref.String()]; pending {
			if err := t.goBack(ctx, ref, before, now.Revision); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", ref, err))
			}
		}
	}
	t.complain(ctx, "cannot pause the environments whose etcd went back in time", errors.Join(problems...))
	if marked {
		if now, err = targets.In(t.DB).Moment(ctx, refs, p.seen); err != nil {
			return err // the same are behind at the next look
		}
	}
	acted := !maps.EqualFunc(now.Reached, p.seen.Reached, targets.Reach.SameActs)
	p.seen = now
	if marked || acted || t.Now().Sub(p.written).Abs() >= pastInterval {
		t.complain(ctx, "cannot remember how far etcd is", p.write(t.Past, t.Now()))
	}
	return nil
}

// goBack marks one environment, once.
func (t *Tasks) goBack(ctx context.Context, ref model.Ref, before targets.Moment, revision int64) error {
	why := fmt.Sprintf("etcd went back in time, from revision %d to %d", before.Revision, revision)
	epoch, err := targets.In(t.DB).GoneBack(ctx, ref, before, targets.Author{By: "pulley serve", Why: why, At: t.Now()})
	if err != nil {
		return err
	}
	delete(t.past.pending, ref.String())
	if epoch > 0 {
		t.Log.Error("etcd went back in time: the environment is paused", "env", ref, "revision", revision, "before", before.Revision,
			"next", fmt.Sprintf("compare `pulley status -e %[1]s` with what you expect, then `pulley recover -e %[1]s`", ref))
		t.Notifier.WentBack(ref, epoch)
	}
	return nil
}

// maxPast limits the size of the file: 10,000 environments need 2 MB.
const maxPast = 64 << 20

func (p *past) load(file string) error {
	if file == "" {
		return nil
	}
	b, err := bounded.ReadFile(file, maxPast)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &p.seen)
	}
	if err != nil {
		p.seen = targets.Moment{}
	}
	return err
}

// remember writes the file at the end of serve.
func (p *past) remember(file string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.Revision == 0 {
		return nil
	}
	return p.write(file, now)
}

// write writes the file. Without it, the next start has less to compare etcd with, and works. An environment that is not marked yet stays as
// it was: the next start finds it behind.
func (p *past) write(file string, now time.Time) error {
	p.written = now
	if file == "" {
		return nil
	}
	seen := targets.Moment{Revision: p.seen.Revision, Reached: maps.Clone(p.seen.Reached)}
	for name, before := range p.pending {
		if was, known := before.Reached[name]; known {
			seen.Reached[name] = was
		}
	}
	b, err := json.Marshal(seen)
	if err == nil {
		err = atomicfile.Write(file, b, 0o600)
	}
	return err
}

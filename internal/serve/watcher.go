package serve

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// A node that writes more than this within a minute floods. A healthy node writes a status of a few kilobytes every
// five minutes. After a long disconnection it writes five records of at most 8 KiB in each tick.
const (
	floodBytes  = 1 << 20
	floodWrites = 300
	floodCalls  = 10 // that etcd refused: no program of Pulley makes them
	floodShown  = 10 // changes within an hour of what other nodes see of the node
)

const (
	slot           = 10 * time.Second // of the summed minute
	slots          = 6
	recordInterval = 10 * time.Second // between two records of one flood
	quietAfter     = 10 * time.Minute // end of a flood
	notesKept      = 24 * time.Hour   // lifetime of its note, and of the note of a lockout
	bootsKept      = 4                // of a node: the newest distinct ones
)

// kernelID matches a machine ID or boot ID.
var kernelID = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// nodeKey names a node of any environment.
type nodeKey struct {
	ref  model.Ref
	node string
}

// watcher sums the writes of nodes. It decides by the writes, never by a node's claims about other nodes.
type watcher struct {
	now func() time.Time
	log *slog.Logger

	mu         sync.Mutex
	tally      map[nodeKey]*tally
	boots      map[nodeKey][]string // boot IDs, the current one last
	floods     map[nodeKey]fleet.Flood
	duplicates map[nodeKey]duplicate
	lockouts   map[pki.Name]lockout // to record
	wake       chan struct{}
}

// tally is the writes of one node in the last minute, in slots.
type tally struct {
	sums     [slots]sums
	at       int64 // number of the newest slot
	reported bool  // the flood was reported
	noted    time.Time
	last     time.Time

	export, entry string      // what other nodes see of it
	shown         []time.Time // the newest changes of either, at most floodShown+1
}

// sums is what one node did in a time.
type sums struct{ bytes, writes, calls int64 }

// flood reports whether a healthy node does less within a minute.
func (s sums) flood() bool {
	return s.bytes > floodBytes || s.writes > floodWrites || s.calls > floodCalls
}

// lockout is a certificate of a node that etcd refuses.
type lockout struct {
	issued  time.Time
	refused time.Time
}

// duplicate is a node under which two machines run.
type duplicate struct{ boot, other, machine string }

func newWatcher(now func() time.Time, log *slog.Logger) *watcher {
	return &watcher{
		now: now, log: log, tally: map[nodeKey]*tally{}, boots: map[nodeKey][]string{},
		floods: map[nodeKey]fleet.Flood{}, duplicates: map[nodeKey]duplicate{}, lockouts: map[pki.Name]lockout{}, wake: make(chan struct{}, 1),
	}
}

// saw counts one write.
func (w *watcher) saw(write fleet.NodeWrite) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := nodeKey{write.Ref, write.Node}
	if write.Shown != "" {
		w.shows(k, write.Shown)
	}
	if write.Bytes > 0 {
		w.count(k, sums{bytes: write.Bytes, writes: 1})
	}
	if write.Status != nil && kernelID.MatchString(write.Status.Boot) { // serve stores these IDs in etcd
		st := model.Status{Boot: write.Status.Boot}
		if kernelID.MatchString(write.Status.Machine) {
			st.Machine = write.Status.Machine
		}
		w.booted(k, st)
	}
}

// shows counts the changes of what other nodes see of a node: each costs them a run of Puppet. It requires the lock.
func (w *watcher) shows(k nodeKey, shown string) {
	t, now := w.of(k), w.now()
	before := &t.export
	if strings.HasPrefix(shown, "entry ") {
		before = &t.entry
	}
	sum := sha256.Sum256([]byte(shown))
	digest, first := string(sum[:]), *before == ""
	if digest == *before {
		return
	}
	if *before, t.last = digest, now; first { // it may be as it was before serve started
		return
	}
	t.shown = append(t.shown, now)
	t.shown = t.shown[max(0, len(t.shown)-floodShown-1):]
	if len(t.shown) <= floodShown || now.Sub(t.shown[0]) > time.Hour {
		return
	}
	if !t.reported {
		w.log.Warn("a node makes other nodes run Puppet again and again", "env", k.ref.String(), "node", k.node, "changes", len(t.shown), "within", "1h")
	}
	t.reported, t.noted = true, now
	w.floods[k] = fleet.Flood{Node: k.node, Shown: int64(len(t.shown)), First: now, Last: now}
	w.signal()
}

// of returns the tally of a node. It requires the lock.
func (w *watcher) of(k nodeKey) *tally {
	t := w.tally[k]
	if t == nil {
		t = &tally{}
		w.tally[k] = t
	}
	return t
}

// refused counts a call to etcd that a node may not make.
func (w *watcher) refused(k nodeKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count(k, sums{calls: 1})
}

// lockedOut notes that etcd refused a node.
func (w *watcher) lockedOut(node pki.Name, issued time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lockouts[node] = lockout{issued, w.now()}
	w.signal()
}

// takeLockouts returns the lockouts to record.
func (w *watcher) takeLockouts() map[pki.Name]lockout {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.lockouts
	w.lockouts = map[pki.Name]lockout{}
	return all
}

// count adds to a node's sums, and detects a flood. It requires the lock.
func (w *watcher) count(k nodeKey, more sums) {
	now, t := w.now(), w.of(k)
	sum := t.add(now, more)
	if !sum.flood() || now.Sub(t.noted) < recordInterval {
		return
	}
	if !t.reported {
		args := []any{"env", k.ref.String(), "node", k.node, "bytes", sum.bytes, "writes", sum.writes, "refused", sum.calls, "within", "1m"}
		if k.node == "" {
			w.log.Warn("a node floods the head of the host list", args...)
		} else {
			w.log.Warn("a node floods etcd", args...)
		}
	}
	if t.reported, t.noted = true, now; k.node == "" {
		return // any node of the environment
	}
	w.floods[k] = fleet.Flood{Node: k.node, Bytes: sum.bytes, Writes: sum.writes, Calls: sum.calls, First: now, Last: now}
	w.signal()
}

func (t *tally) add(now time.Time, more sums) (sum sums) {
	at := now.UnixNano() / int64(slot)
	for t.at < at { // clear the slots of an earlier minute
		t.at = max(t.at+1, at-slots+1)
		t.sums[t.at%slots] = sums{}
	}
	i := ((at % slots) + slots) % slots
	t.sums[i] = t.sums[i].plus(more)
	t.last = now
	for _, s := range t.sums {
		sum = sum.plus(s)
	}
	return sum
}

func (s sums) plus(o sums) sums {
	return sums{s.bytes + o.bytes, s.writes + o.writes, s.calls + o.calls}
}

// booted detects a boot that had ended: a restarted machine has a new boot ID, and an old one never returns.
func (w *watcher) booted(k nodeKey, st model.Status) {
	seen := w.boots[k]
	if len(seen) > 0 && seen[len(seen)-1] == st.Boot {
		return
	}
	if slices.Contains(seen, st.Boot) {
		w.duplicates[k] = duplicate{boot: st.Boot, other: seen[len(seen)-1], machine: st.Machine}
		w.boots[k] = []string{st.Boot} // report it again only after a new detection
		w.signal()
		return
	}
	seen = append(seen, st.Boot)
	w.boots[k] = seen[max(0, len(seen)-bootsKept):]
}

// signal requires the lock.
func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the detections to store.
func (w *watcher) take() (floods map[nodeKey]fleet.Flood, duplicates map[nodeKey]duplicate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	floods, duplicates = w.floods, w.duplicates
	w.floods, w.duplicates = map[nodeKey]fleet.Flood{}, map[nodeKey]duplicate{}
	return floods, duplicates
}

// putBack restores a detection that could not be stored, unless there is a newer one.
func putBack[D any](w *watcher, pending *map[nodeKey]D, k nodeKey, d D) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, newer := (*pending)[k]; !newer {
		(*pending)[k] = d
	}
}

// forget drops ended floods. Memory must not grow with removed nodes.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for k, t := range w.tally {
		switch idle := now.Sub(t.last); {
		case idle > time.Hour:
			delete(w.tally, k)
			delete(w.boots, k)
		case now.Sub(t.noted) > quietAfter:
			t.reported = false
		}
	}
}

// watchNodes watches until ctx ends, and records floods and duplicate machines.
func (t *Tasks) watchNodes(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() {
		t.every(ctx, watchPause, "cannot watch nodes", func(ctx context.Context) error { return fleet.In(t.DB).Watch(ctx, t.saw) })
	})
	defer both.Wait()
	ticker := time.NewTicker(recordInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.watcher.wake:
		case <-ticker.C:
			t.watcher.forget()
		}
		floods, duplicates := t.watcher.take()
		for key, f := range floods {
			t.recordFlood(ctx, key, f)
		}
		for key, d := range duplicates {
			t.recordDuplicate(ctx, key, d)
		}
		for node, l := range t.watcher.takeLockouts() {
			if err := access.IdentitiesIn(t.DB).NoteLockout(ctx, node, l.issued, l.refused.UTC()); err != nil { // a later call is recorded
				t.complain(ctx, "cannot record that etcd refuses a node", err, "env", node.Environment, "node", node.Subject)
			}
		}
	}
}

// saw counts one write of a node, and its run.
func (t *Tasks) saw(w fleet.NodeWrite) {
	t.watcher.saw(w)
	if w.Run != nil {
		t.runs.count(w.Ref.String(), *w.Run)
		if w.Run.Drift {
			t.drifted(w.Ref, *w.Run, w.Node)
		}
	}
}

func (t *Tasks) recordFlood(ctx context.Context, key nodeKey, f fleet.Flood) {
	first, err := fleet.In(t.DB).NoteFlood(ctx, key.ref, f)
	if err != nil {
		t.complain(ctx, "cannot record a flood", err, "env", key.ref.String(), "node", key.node)
		putBack(t.watcher, &t.watcher.floods, key, f) // etcd may be full or unreachable
		return
	}
	if first {
		t.events.WithLabelValues("flood").Inc()
		t.Notifier.Flood(key.ref, f)
	}
}

// recordDuplicate freezes a node under which two machines run. Neither machine may take a new target until an operator
// has decided.
func (t *Tasks) recordDuplicate(ctx context.Context, key nodeKey, d duplicate) {
	now := t.Now().UTC().Truncate(time.Second)
	hold := model.Hold{
		Mode: model.Freeze, Kind: model.DuplicateHold, Who: "pulley serve", Since: now,
		Why: model.Prose(fmt.Sprintf("boot ids %s and %s", d.other, d.boot)),
	}
	held, err := fleet.In(t.DB).HoldUnlessHeld(ctx, key.ref, etcd.Scope{Node: key.node}, hold)
	noted := false
	if err == nil {
		noted, err = access.IdentitiesIn(t.DB).NoteDuplicateBoot(ctx, key.ref, key.node, access.Duplicate{Machine: d.machine, Boot: d.boot, At: now})
	}
	if err != nil {
		t.complain(ctx, "cannot record a duplicate machine", err, "env", key.ref.String(), "node", key.node)
		putBack(t.watcher, &t.watcher.duplicates, key, d)
		return
	}
	t.Log.Warn("two machines run as one node", "env", key.ref.String(), "node", key.node, "boot", d.boot, "other", d.other, "frozen", held)
	if held || noted {
		t.events.WithLabelValues("duplicate").Inc()
		t.Notifier.DuplicateRuns(key.ref, key.node, [2]string{d.other, d.boot})
	}
}

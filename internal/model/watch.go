package model

import "time"

// Signs is how often a node gives a sign of life within hosts.alive, and how often the nodes that see it look for signs.
const Signs = 4

// looks without a new sign are one quarter more than hosts.alive: a node may report for a quarter after its last sign.
const looks = Signs + 2

// Watch judges which nodes gave a sign of life within hosts.alive. Clocks of machines differ. Therefore etcd's revisions give the
// order of the signs and of this node's looks at them; its own clock only separates its looks. Without etcd it looks at nothing:
// no node counts as dead because nobody could report.
type Watch struct {
	Alive time.Duration `json:"alive,omitempty"` // hosts.alive of the release in place; 0: the node does not watch
	At    time.Time     `json:"at,omitzero"`     // of the last look
	Looks [looks]int64  `json:"looks,omitzero"`  // etcd's revisions at the last looks, oldest first; 0: before the first one
}

// Since returns the revision after which a living node gave a sign. It is 0 until the node has watched for this time.
func (w Watch) Since(alive time.Duration) int64 {
	if w.Alive != alive {
		return 0
	}
	return w.Looks[0]
}

// Due reports whether it is time for a look. A clock that was set back makes one due.
func (w Watch) Due(now time.Time) bool { return w.Alive > 0 && Elapsed(w.At, now, w.Alive/Signs) }

// Read returns the watch after a read at a revision, which is a look if one is due.
func (w Watch) Read(now time.Time, revision int64) Watch {
	if revision < w.Looks[looks-1] { // etcd was restored from a backup
		w.Looks = [looks]int64{}
	}
	if !w.Due(now) {
		return w
	}
	if !now.Before(w.At) {
		copy(w.Looks[:], w.Looks[1:])
		w.Looks[looks-1] = revision
	}
	w.At = now
	return w
}

// Elapsed reports whether a time passed since then, also by a clock that was set back.
func Elapsed(then, now time.Time, d time.Duration) bool {
	passed := now.Sub(then)
	return passed < 0 || passed >= d
}

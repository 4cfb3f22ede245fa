package machinestest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
)

// Sim is a fleet: its keys in etcd, and a cloud with its machines and those of others. Each call first does what time has done to
// machines since the last one.
type Sim struct{ model }

// model is the state of a Sim; its methods need the lock.
type model struct {
	Ref     environments.Ref
	Now     func() time.Time
	Latency time.Duration           // of each call
	Trouble func(call string) Fault // is asked at each call; nil: all is well
	Quota   int                     // of machines; 0: none
	NoIDs   bool                    // the provider has no names of its own for its machines

	mu       sync.Mutex
	boxes    []*box
	count    int
	spec     *environments.Environment
	revision int64
	target   agent.Target
	records  map[string]machines.Record
	hosts    map[string]agent.Host
	holds    map[string]agent.Hold
	statuses map[string]agent.Status
	answers  map[string]string // by request: what the node will answer; HookHang for nothing
	tokens   map[string]token
	payloads int // that were made
	acts     []machines.Act
	holder   *Session
	wrong    []string
	past     []string // what happened last
	hides    Hides
	hidesTo  time.Time
	said     map[string]int       // by node: which of all that happened its last word was
	off      map[string]int       // by node: likewise, when it was taken off the list while it retired
	moments  int                  // counts them
	booked   map[string]time.Time // by machine: since when the books have it as made
	members  map[string]bool      // who was ever a member of a role in the environment that is stored
	watched  []time.Time          // when a Watcher began with a machine
}

// Hides is what a provider does not tell although it is there.
type Hides string

// What it may be. All but Lags are blind to it with all their calls.
const (
	Nothing Hides = ""
	All     Hides = "all"   // another project, another region: an empty list
	Half    Hides = "half"  // a page that is missing
	Lags    Hides = "young" // the list comes later
)

// listLag is how much later.
const listLag = 90 * time.Second

type token struct {
	node string
	dead bool
}

// box is a machine.
type box struct {
	machines.Machine
	mark      machines.Mark
	labels    map[string]string
	node      string
	userdata  []byte
	fate      Fault
	by        *Session
	appears   time.Time // in lists
	runs      time.Time
	goneAt    time.Time // zero: it stays
	joined    bool
	joinedAt  time.Time
	missed    bool // a list lacked it while its node was off the list of hosts
	converges time.Time
	retired   bool
	asked     string // the flavor, in the order's words
	number    int
	ended     bool // its end was asked for
}

// NewSim makes an empty one, in which a release is promoted.
func NewSim(ref environments.Ref, now func() time.Time) *Sim {
	return &Sim{model{
		Ref: ref, Now: now, target: agent.Target{Release: "1.0.0", Tree: "aa"},
		records: map[string]machines.Record{}, hosts: map[string]agent.Host{}, holds: map[string]agent.Hold{}, statuses: map[string]agent.Status{},
		answers: map[string]string{}, tokens: map[string]token{}, said: map[string]int{}, off: map[string]int{}, booked: map[string]time.Time{},
		members: map[string]bool{},
	}}
}

// hidden reports whether a list lacks a machine that is there; by name, whether any other call does, too.
func (s *model) hidden(b *box, byName bool) bool {
	if !s.Now().Before(s.hidesTo) {
		return false
	}
	switch s.hides {
	case All:
		return true
	case Half:
		return b.number%2 == 0
	case Lags:
		return !byName && s.Now().Sub(b.Created) < listLag
	}
	return false
}

func (s *model) moment() int {
	s.moments++
	return s.moments
}

// Mark is that of the fleet's machines.
func (s *Sim) Mark() machines.Mark {
	return machines.Mark{Owner: "0123456789abcdef", Fleet: s.Ref.String()}
}

func (s *model) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass()
	f()
}

// blame remembers that something was done that must never be.
func (s *model) blame(format string, args ...any) {
	s.remembers("WRONG: "+format, args...)
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// remembers keeps what happened last, for who has to find out how it came to what must never be.
func (s *model) remembers(format string, args ...any) {
	const most = 80
	if len(s.wrong) > 0 {
		return // what comes after that tells nothing
	}
	s.past = append(s.past, s.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	s.past = s.past[max(0, len(s.past)-most):]
}

// Mention adds to it.
func (s *Sim) Mention(format string, args ...any) { s.locked(func() { s.remembers(format, args...) }) }

// Past is what happened last, oldest first.
func (s *Sim) Past() (all []string) {
	s.locked(func() { all = slices.Clone(s.past) })
	return all
}

// Wrong lists what was done that must never be.
func (s *Sim) Wrong() (all []string) {
	s.locked(func() { all = slices.Clone(s.wrong) })
	return all
}

// Machines lists all machines, of whatever mark, that are listed by now.
func (s *Sim) Machines() (all []Seen) {
	s.locked(func() {
		for _, b := range s.boxes {
			if s.listed(b) {
				all = append(all, Seen{Machine: b.Machine, Mark: b.mark, Joined: b.joined})
			}
		}
	})
	return all
}

// Seen is a machine as only a test sees it.
type Seen struct {
	machines.Machine
	Mark   machines.Mark
	Joined bool
}

// Records copies the books.
func (s *Sim) Records() (all map[string]machines.Record) {
	s.locked(func() { all = maps.Clone(s.records) })
	return all
}

// Hosts copies the list of hosts.
func (s *Sim) Hosts() (all map[string]agent.Host) {
	s.locked(func() { all = maps.Clone(s.hosts) })
	return all
}

// Acts copies what was done.
func (s *Sim) Acts() (all []machines.Act) {
	s.locked(func() { all = slices.Clone(s.acts) })
	return all
}

// Spec is the environment that is stored.
func (s *Sim) Spec() (e *environments.Environment) {
	s.locked(func() { e = s.spec })
	return e
}

// Pending reports whether a machine is still to appear, of an order whose answer was lost.
func (s *Sim) Pending() (any bool) {
	s.locked(func() { any = slices.ContainsFunc(s.boxes, func(b *box) bool { return !s.listed(b) }) })
	return any
}

// Held is the hold of a node's own that it is under.
func (s *Sim) Held(node string) (h agent.Hold) {
	s.locked(func() { h = s.holds[node] })
	return h
}

func (s *model) fault(call string) Fault {
	if s.Trouble == nil {
		return None
	}
	return s.Trouble(call)
}

// Session is one program that has the lock of the fleet: a provision.Fleet, and the provider as that program sees it.
type Session struct {
	site    *Sim
	by      string
	crashed bool
	dies    func()
	agreed  map[machines.Ref]bool // nil: nobody is asked, and nothing is checked
	aim     *Aim                  // nil: likewise
}

// Open takes the lock, from whoever has it. dies is called when the program is to die; nil: nobody has to know.
func (s *Sim) Open(by string, dies func()) *Session {
	x := &Session{site: s, by: by, dies: dies}
	s.locked(func() { s.holder = x })
	return x
}

// Agree names the machines that this apply may delete, and has it watched.
func (x *Session) Agree(victims []machines.Ref) {
	x.site.locked(func() {
		x.agreed = map[machines.Ref]bool{}
		for _, v := range victims {
			x.agreed[v] = true
		}
	})
}

// Crash has the program dead: each of its calls fails from now on, without effect.
func (x *Session) Crash() { x.site.locked(x.crash) }

// Crashed reports whether it is dead.
func (x *Session) Crashed() (dead bool) {
	x.site.locked(func() { dead = x.crashed })
	return dead
}

func (x *Session) crash() {
	x.crashed = true
	if x.dies != nil {
		x.dies()
	}
}

// call does one call, with what goes wrong with it. fenced calls have no effect once the lock is lost.
func (x *Session) call(ctx context.Context, name string, fenced bool, effect func(Fault) error) error {
	if x.site.Latency > 0 {
		t := time.NewTimer(x.site.Latency)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	s := x.site
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass()
	if x.crashed {
		return errCrashed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f := s.fault(name)
	switch f {
	case CrashBefore:
		x.crash()
		return errCrashed
	case FailBefore:
		return errNoAnswer
	}
	if fenced && s.holder != x {
		return fmt.Errorf("cannot %s: %w", name, machines.ErrLost)
	}
	err := effect(f)
	if name != "world" && name != "list" || err != nil || f != None {
		s.remembers("%s (%p): %s %s: %v", x.by, x, name, f, err)
	}
	s.pass()
	switch {
	case f == CrashAfter:
		x.crash()
		return errCrashed
	case f == FailAfter && err == nil:
		return errNoAnswer
	}
	return err
}

// Made counts all machines that were ever ordered or planted.
func (s *Sim) Made() (n int) {
	s.locked(func() { n = s.count })
	return n
}

package provisiontest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/provision"
)

// Site is a fleet's place in etcd, and a cloud with its machines and those of others. What time does to machines is worked out
// whenever anybody looks.
type Site struct {
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
	records  map[string]provision.Record
	hosts    map[string]agent.Host
	holds    map[string]agent.Hold
	statuses map[string]agent.Status
	answers  map[string]string // by request: what the node will answer; HookHang for nothing
	tokens   map[string]token
	acts     []provision.Act
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
	provision.Machine
	mark      provision.Mark
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
	converges time.Time
	retired   bool
	asked     string // the flavor, in the order's words
	number    int
	ended     bool // its end was asked for
}

// NewSite makes an empty one, in which a release is promoted.
func NewSite(ref environments.Ref, now func() time.Time) *Site {
	return &Site{
		Ref: ref, Now: now, target: agent.Target{Release: "1.0.0", Tree: "aa"},
		records: map[string]provision.Record{}, hosts: map[string]agent.Host{}, holds: map[string]agent.Hold{}, statuses: map[string]agent.Status{},
		answers: map[string]string{}, tokens: map[string]token{}, said: map[string]int{}, off: map[string]int{}, booked: map[string]time.Time{},
		members: map[string]bool{},
	}
}

// Hide has the provider not tell of some of its machines for a while.
func (s *Site) Hide(what Hides, lasts time.Duration) {
	s.locked(func() { s.hides, s.hidesTo = what, s.Now().Add(lasts) })
}

// hidden reports whether a list lacks a machine that is there; by name, whether any other call does, too.
func (s *Site) hidden(b *box, byName bool) bool {
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

func (s *Site) moment() int {
	s.moments++
	return s.moments
}

// Mark is that of the fleet's machines.
func (s *Site) Mark() provision.Mark {
	return provision.Mark{Owner: "0123456789abcdef", Fleet: s.Ref.String()}
}

// Demote has nothing promoted.
func (s *Site) Demote() { s.locked(func() { s.target = agent.Target{} }) }

func (s *Site) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass()
	f()
}

// blame remembers that something was done that must never be.
func (s *Site) blame(format string, args ...any) {
	s.remembers("WRONG: "+format, args...)
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// remembers keeps what happened last, for who has to find out how it came to what must never be.
func (s *Site) remembers(format string, args ...any) {
	const most = 80
	if len(s.wrong) > 0 {
		return // what comes after that tells nothing
	}
	s.past = append(s.past, s.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	s.past = s.past[max(0, len(s.past)-most):]
}

// Mention adds to it.
func (s *Site) Mention(format string, args ...any) { s.locked(func() { s.remembers(format, args...) }) }

// Past is what happened last, oldest first.
func (s *Site) Past() (all []string) {
	s.locked(func() { all = slices.Clone(s.past) })
	return all
}

// Wrong lists what was done that must never be.
func (s *Site) Wrong() (all []string) {
	s.locked(func() { all = slices.Clone(s.wrong) })
	return all
}

// Machines lists all machines, of whatever mark, that are listed by now.
func (s *Site) Machines() (all []Seen) {
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
	provision.Machine
	Mark   provision.Mark
	Joined bool
}

// Records copies the books.
func (s *Site) Records() (all map[string]provision.Record) {
	s.locked(func() { all = maps.Clone(s.records) })
	return all
}

// Hosts copies the list of hosts.
func (s *Site) Hosts() (all map[string]agent.Host) {
	s.locked(func() { all = maps.Clone(s.hosts) })
	return all
}

// Acts copies what was done.
func (s *Site) Acts() (all []provision.Act) {
	s.locked(func() { all = slices.Clone(s.acts) })
	return all
}

// Spec is the environment that is stored.
func (s *Site) Spec() (e *environments.Environment) {
	s.locked(func() { e = s.spec })
	return e
}

// Pending reports whether a machine is still to appear, of an order whose answer was lost.
func (s *Site) Pending() (any bool) {
	s.locked(func() { any = slices.ContainsFunc(s.boxes, func(b *box) bool { return !s.listed(b) }) })
	return any
}

// Plant puts a machine there that runs and that nobody ordered.
func (s *Site) Plant(name string, mark provision.Mark) (m provision.Machine) {
	s.locked(func() {
		b := s.box(provision.Order{Name: name}, mark)
		b.State, b.fate = provision.Running, NoBoot
		m = b.Machine
	})
	return m
}

// Kill has something happen to a machine: it is lost, or goes into a state.
func (s *Site) Kill(id string, state provision.State) {
	s.locked(func() {
		for _, b := range s.boxes {
			if b.ID != id {
				continue
			}
			if state == "" {
				b.goneAt = s.Now()
			} else {
				b.State, b.Problem = state, "it was killed"
				if state == provision.Deleting {
					b.goneAt = s.Now().Add(endTakes)
				}
			}
		}
		s.pass()
	})
}

// Join puts a node on the list that has no machine here.
func (s *Site) Join(node, role string) {
	s.locked(func() { s.hosts[node] = agent.Host{Node: node, Role: role, At: s.Now().UTC(), By: "bootstrap"} })
}

// Say writes what a node says of itself.
func (s *Site) Say(st agent.Status) {
	s.locked(func() { s.statuses[st.Node], s.said[st.Node] = st, s.moment() })
}

// Enroll has a machine of somebody else join as a node, as a member of a role does, and live on as one.
func (s *Site) Enroll(node, role string, mark provision.Mark) (m provision.Machine) {
	s.locked(func() {
		var b *box
		for _, known := range s.boxes {
			if known.Name == node && known.mark == mark {
				b = known
			}
		}
		if b == nil {
			b = s.box(provision.Order{Name: node}, mark)
		}
		now := s.Now()
		b.State, b.node, b.joined, b.retired, b.joinedAt, b.converges = provision.Running, node, true, false, now, now
		s.hosts[node] = agent.Host{Node: node, Role: role, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
		m = b.Machine
	})
	return m
}

// Ask has somebody beside the apply ask a node for something.
func (s *Site) Ask(node string, q agent.Request) {
	s.locked(func() {
		if h, ok := s.hosts[node]; ok {
			h.Request = &q
			s.hosts[node] = h
		}
	})
}

// HeldBy is why a node is under a hold of its own.
func (s *Site) HeldBy(node string) (why string) {
	s.locked(func() { why = s.holds[node].Why })
	return why
}

// HoldNode puts a node under a hold; without a reason it takes that away.
func (s *Site) HoldNode(node, why string) {
	s.locked(func() {
		delete(s.holds, node)
		if why != "" {
			s.holds[node] = agent.Hold{Scope: "nodes/" + node, Mode: agent.Freeze, Why: why}
		}
	})
}

func (s *Site) fault(call string) Fault {
	if s.Trouble == nil {
		return None
	}
	return s.Trouble(call)
}

// Session is one program that has the lock of the fleet: a provision.Fleet, and the provider as that program sees it.
type Session struct {
	site    *Site
	by      string
	crashed bool
	dies    func()
	agreed  map[provision.Victim]bool // nil: nobody is asked, and nothing is checked
	aim     *Aim                      // nil: likewise
}

// Open takes the lock, from whoever has it. dies is called when the program is to die; nil: nobody has to know.
func (s *Site) Open(by string, dies func()) *Session {
	x := &Session{site: s, by: by, dies: dies}
	s.locked(func() { s.holder = x })
	return x
}

// Agree names the machines that this session may delete, and has it watched.
func (x *Session) Agree(victims []provision.Victim) {
	x.site.locked(func() {
		x.agreed = map[provision.Victim]bool{}
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
		return fmt.Errorf("cannot %s: %w", name, provision.ErrLost)
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

// Take has a machine join as a node, whatever its token says.
func (s *Site) Take(node, id string) {
	s.locked(func() {
		for _, b := range s.boxes {
			if b.ID == id {
				now := s.Now()
				b.joined, b.node, b.joinedAt, b.converges = true, node, now, now
				s.hosts[node] = agent.Host{Node: node, Role: roleOf(node), Hostname: b.Name, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
			}
		}
	})
}

// Retiring has the books say that the retiring of a node was begun, which has not answered: it is held, and asked.
func (s *Site) Retiring(node string) {
	s.locked(func() {
		r, h := s.records[node], s.hosts[node]
		r.Phase, r.Ask, r.At = provision.Retiring, "00000000000000cc", s.Now().UTC()
		h.Request = &agent.Request{ID: r.Ask, Do: agent.DeedRetire, At: r.At}
		s.answers[r.Ask] = string(HookHang)
		s.records[node], s.hosts[node] = r, h
		s.holds[node] = agent.Hold{Scope: "nodes/" + node, Mode: agent.Stop, Why: provision.RetiredWhy + "the file calls for 1"}
	})
}

// Forget strikes a node off the books.
func (s *Site) Forget(node string) { s.locked(func() { delete(s.records, node) }) }

// Heal ends all faults that last: the provider knows its machines, they converge, and hooks end. Those that never booted stay
// as they are.
func (s *Site) Heal() {
	s.locked(func() {
		s.Trouble, s.Quota, s.hides = nil, 0, Nothing
		clear(s.answers)
		for _, b := range s.boxes {
			if b.fate == NoRun {
				b.fate = None
			}
			if b.State == provision.Unknown {
				b.State = provision.Running
			}
		}
	})
}

// Unlist takes a node off the list of hosts, as `pulley nodes remove` does.
func (s *Site) Unlist(node string) {
	s.locked(func() { delete(s.hosts, node); delete(s.holds, node) })
}

// Made counts all machines that were ever ordered or planted.
func (s *Site) Made() (n int) {
	s.locked(func() { n = s.count })
	return n
}

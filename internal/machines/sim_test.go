package machines_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// sim is a fleet in memory: its keys in etcd, and a provider with its machines and foreign ones. Machines boot, join,
// converge and die as time passes, with every known fault: each call first advances them to the present. Sim must never
// be more tolerant than the systems that it replaces: TestSimKeepsContract, TestSimIsConformingProvider.
type sim struct{ modelled }

// modelled is the state of a Sim; its methods need the lock.
type modelled struct {
	Ref       model.Ref
	Now       func() time.Time
	Latency   time.Duration           // of each call
	Trouble   func(call string) fault // is called at each call and returns its fault; nil: no faults
	Quota     int                     // of machines; 0: none
	FirstBoot time.Duration           // of a machine after its join: its first report comes later
	NoIDs     bool                    // the provider has no ids for its machines

	mu       sync.Mutex
	boxes    []*box
	count    int
	spec     *environments.Environment
	revision int64
	target   model.Target
	records  map[string]machines.Record
	hosts    map[string]model.Host
	holds    map[string]model.Hold
	statuses map[string]model.Status
	answers  map[string]string // by request: the answer of the node; hookHang for none
	tokens   map[string]token
	payloads int // number of payloads that were made
	acts     []machines.Act
	holder   *session
	wrong    []string
	past     []string // the last events
	hides    hides
	hidesTo  time.Time
	said     map[string]int       // by node: index of its last status among all events
	off      map[string]int       // by node: index of its removal from the host list while it retired
	moments  int                  // counts the events
	booked   map[string]time.Time // by machine: when its record said that it was made
	members  map[string]bool      // nodes that ever were members of a role in the stored environment
	watched  []time.Time          // when a Watcher began to work on a machine
}

// hides is the kind of existing machines that a provider does not report.
type hides string

// The kinds. All but Lags affect every call of the provider.
const (
	nothing hides = ""
	all     hides = "all"   // another project, another region: an empty list
	half    hides = "half"  // a missing page
	lags    hides = "young" // lists come late
)

// listLag is the delay of a list.
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
	fate      fault
	by        *session
	appears   time.Time // in lists
	runs      time.Time
	goneAt    time.Time // zero: it stays
	joined    bool
	joinedAt  time.Time
	omitted   bool // a list lacked it while its node was not in the host list
	converges time.Time
	retired   bool
	asked     string // the flavor, as in the order
	number    int
	ended     bool // its deletion was requested
}

// newSim returns an empty Sim with a promoted release.
func newSim(ref model.Ref, now func() time.Time) *sim {
	return &sim{modelled{
		Ref: ref, Now: now, target: model.Target{Release: "1.0.0", Tree: "aa"},
		records: map[string]machines.Record{}, hosts: map[string]model.Host{}, holds: map[string]model.Hold{}, statuses: map[string]model.Status{},
		answers: map[string]string{}, tokens: map[string]token{}, said: map[string]int{}, off: map[string]int{}, booked: map[string]time.Time{},
		members: map[string]bool{},
	}}
}

// hidden reports whether a list omits an existing machine; with byName, whether other calls do, too.
func (s *modelled) hidden(b *box, byName bool) bool {
	if !s.Now().Before(s.hidesTo) {
		return false
	}
	switch s.hides {
	case all:
		return true
	case half:
		return b.number%2 == 0
	case lags:
		return !byName && s.Now().Sub(b.Created) < listLag
	}
	return false
}

func (s *modelled) moment() int {
	s.moments++
	return s.moments
}

// mark returns the mark of the fleet's machines.
func (s *sim) mark() machines.Mark {
	return machines.Mark{Owner: "0123456789abcdef", Fleet: s.Ref.String()}
}

func (s *modelled) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass()
	f()
}

// violated records a violation of a rule.
func (s *modelled) violated(format string, args ...any) {
	s.note("WRONG: "+format, args...)
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// remembers records an event, for the analysis of a violation.
func (s *modelled) note(format string, args ...any) {
	const most = 80
	if len(s.wrong) > 0 {
		return // later events do not explain the violation
	}
	s.past = append(s.past, s.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	s.past = s.past[max(0, len(s.past)-most):]
}

// mention records an event of a test.
func (s *sim) mention(format string, args ...any) { s.locked(func() { s.note(format, args...) }) }

// Past returns the last events, oldest first.
func (s *sim) Past() (all []string) {
	s.locked(func() { all = slices.Clone(s.past) })
	return all
}

// violations returns the violations.
func (s *sim) violations() (all []string) {
	s.locked(func() { all = slices.Clone(s.wrong) })
	return all
}

// machines returns all listed machines, of any mark.
func (s *sim) machines() (all []seen) {
	s.locked(func() {
		for _, b := range s.boxes {
			if s.listed(b) {
				all = append(all, seen{Machine: b.Machine, Mark: b.mark, Joined: b.joined})
			}
		}
	})
	return all
}

// seen is a machine with details that only a test can see.
type seen struct {
	machines.Machine
	Mark   machines.Mark
	Joined bool
}

// Records returns a copy of the machine records.
func (s *sim) Records() (all map[string]machines.Record) {
	s.locked(func() { all = maps.Clone(s.records) })
	return all
}

// Hosts returns a copy of the host list.
func (s *sim) Hosts() (all map[string]model.Host) {
	s.locked(func() { all = maps.Clone(s.hosts) })
	return all
}

// Acts returns a copy of the history.
func (s *sim) Acts() (all []machines.Act) {
	s.locked(func() { all = slices.Clone(s.acts) })
	return all
}

// Spec returns the stored environment.
func (s *sim) Spec() (e *environments.Environment) {
	s.locked(func() { e = s.spec })
	return e
}

// Pending reports whether an order whose answer was lost will still produce a machine.
func (s *sim) Pending() (any bool) {
	s.locked(func() { any = slices.ContainsFunc(s.boxes, func(b *box) bool { return !s.listed(b) }) })
	return any
}

// held returns the hold of a node itself, without its role's.
func (s *sim) held(node string) (h model.Hold) {
	s.locked(func() { h = s.holds[node] })
	return h
}

func (s *modelled) fault(call string) fault {
	if s.Trouble == nil {
		return none
	}
	return s.Trouble(call)
}

// session is one program that has the lock of the fleet: a machines.Fleet, and the provider as this program sees it.
type session struct {
	site     *sim
	by       string
	crashed  bool
	dies     func()
	approved map[machines.Ref]bool // nil: approvals are not checked
	aim      *aim                  // nil: acts are not judged
}

// Open takes the lock from its holder. dies is called when the program must die; nil means no callback.
func (s *sim) Open(by string, dies func()) *session {
	x := &session{site: s, by: by, dies: dies}
	s.locked(func() { s.holder = x })
	return x
}

// approve approves the deletion of machines by this apply, and checks it from now on.
func (x *session) approve(refs []machines.Ref) {
	x.site.locked(func() {
		x.approved = map[machines.Ref]bool{}
		for _, v := range refs {
			x.approved[v] = true
		}
	})
}

// Crash ends the program: each later call fails without effect.
func (x *session) Crash() { x.site.locked(x.crash) }

func (x *session) crash() {
	x.crashed = true
	if x.dies != nil {
		x.dies()
	}
}

// call runs one call with its fault. A fenced call has no effect once the lock is lost.
func (x *session) call(ctx context.Context, name string, fenced bool, effect func(fault) error) error {
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
	case crashBefore:
		x.crash()
		return errCrashed
	case failBefore:
		return errNoAnswer
	}
	if fenced && s.holder != x {
		return fmt.Errorf("cannot %s: %w", name, machines.ErrLost)
	}
	err := effect(f)
	if name != "world" && name != "list" || err != nil || f != none {
		s.note("%s (%p): %s %s: %v", x.by, x, name, f, err)
	}
	s.pass()
	switch {
	case f == crashAfter:
		x.crash()
		return errCrashed
	case f == failAfter && err == nil:
		return errNoAnswer
	}
	return err
}

// made returns the number of machines that were ever ordered or planted.
func (s *sim) made() (n int) {
	s.locked(func() { n = s.count })
	return n
}

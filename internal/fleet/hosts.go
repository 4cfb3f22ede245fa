package fleet

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// Host is a node that the environment has or that is registered; or a machine in its first boot without a name, whose
// Node is "". `pulley nodes -o json` prints it.
type Host struct {
	model.Host
	Registered bool              `json:"registered"`
	CalledFor  bool              `json:"called_for"` // by the environment
	Joined     *Join             `json:"joined,omitempty"`
	FirstBoot  *FirstBoot        `json:"first_boot,omitempty"`
	Duplicate  *access.Duplicate `json:"duplicate,omitempty"`
	Removed    *access.Removal   `json:"removed,omitempty"`
}

// Join is the join in which a node got its certificate.
type Join struct {
	User    string    `json:"user"`
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	Until   time.Time `json:"until"`
	CA      string    `json:"ca"`
	Token   string    `json:"token"`
	By      string    `json:"by"`
}

// FirstBoot is the progress of a machine in its first boot.
type FirstBoot struct {
	access.FirstBoot
	Stalled bool            `json:"stalled"`          // unfinished, and silent for too long
	Before  int             `json:"before,omitempty"` // machines that wait longer for their turn
	Paused  *access.Revoked `json:"paused,omitempty"` // it waits, and an operator paused the provisioning of the environment
}

// HostsRead contains the arguments of Hosts.
type HostsRead struct {
	Spec       *environments.Environment
	Hosts      map[string]model.Host
	Identities map[string]access.Identity  // by node
	FirstBoots map[string]access.FirstBoot // by key
	Paused     *access.Revoked             // an operator paused the provisioning of new machines; nil: not
	Damaged    []string                    // unreadable keys
	Notes      []string                    // about the expression of the selection

	selected func(role, node string) bool // nil: all
}

// ReadHosts reads the arguments of Hosts for the selected nodes; one node with point reads.
func ReadHosts(ctx context.Context, s *etcd.DB, ref model.Ref, sel Selection, now time.Time) (r HostsRead, err error) {
	if len(sel.States) > 0 || len(sel.Nodes) == 1 || sel.Where != nil && sel.Where.Judged() {
		f, err := Find(ctx, s, ref, sel)
		if err != nil {
			return r, err
		}
		r.Spec, r.Hosts, r.Damaged = f.Spec, f.Hosts, f.Damaged
		if err := r.narrow(ctx, s, ref, f, &sel, now); err != nil {
			return r, err
		}
		if len(sel.States) > 0 {
			in := map[string]bool{}
			for _, n := range Look(f, ref, sel, now).Nodes {
				in[n.Node] = true
			}
			r.selected = func(_, node string) bool { return in[node] }
		}
	} else {
		if r.Spec, err = FindEnvironment(ctx, specs.In(s), ref); err != nil {
			return r, err
		}
		if r.Hosts, r.Damaged, err = In(s).HostList(ctx, ref); err != nil {
			return r, err
		}
		known := map[string]bool{}
		for name := range r.Hosts {
			known[name] = true
		}
		if err := sel.Check(r.Spec, known); err != nil {
			return r, err
		}
		if err := r.narrow(ctx, s, ref, FleetState{Spec: r.Spec, Hosts: r.Hosts}, &sel, now); err != nil {
			return r, err
		}
	}
	var damaged []string
	if len(sel.Nodes) == 1 {
		node := sel.Nodes[0]
		identity, _, err := access.IdentitiesIn(s).Get(ctx, ref, node)
		if err != nil {
			return r, err
		}
		if identity != nil {
			r.Identities = map[string]access.Identity{node: *identity}
		}
	} else if r.Identities, damaged, err = access.IdentitiesIn(s).List(ctx, ref); err != nil {
		return r, err
	}
	r.Damaged = append(r.Damaged, damaged...)
	return r, r.readBoots(ctx, s, ref)
}

func (r *HostsRead) readBoots(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	boots, damaged, err := access.FirstBootsIn(s).List(ctx, ref)
	r.FirstBoots, r.Damaged = boots, append(r.Damaged, damaged...)
	if err == nil {
		var p access.Provisioning
		p, _, err = access.FirstBootsIn(s).Provisioning(ctx, ref)
		r.Paused = p.Paused
		if unreadable := new(etcd.UnreadableError); errors.As(err, &unreadable) { // it hides no node
			r.Damaged, err = append(r.Damaged, unreadable.Error()), nil
		}
	}
	return err
}

// BootsOf reads the unfinished first boots of those of some nodes that have not reported, by node. It reads nothing if each one has.
func BootsOf(ctx context.Context, s *etcd.DB, ref model.Ref, nodes []Node, now time.Time) (map[string]*FirstBoot, error) {
	if !slices.ContainsFunc(nodes, func(n Node) bool { return n.LastSeen == nil }) {
		return nil, nil
	}
	var r HostsRead
	err := r.readBoots(ctx, s, ref)
	all, _ := r.boots(now)
	maps.DeleteFunc(all, func(_ string, b *FirstBoot) bool { return !b.Finished.IsZero() })
	return all, err
}

// AddBoots adds first boots to the nodes that have not reported.
func (s *Status) AddBoots(boots map[string]*FirstBoot) {
	for i, n := range s.Nodes {
		if n.LastSeen == nil {
			s.Nodes[i].FirstBoot = boots[n.Node]
		}
	}
}

// narrow evaluates the expression of a selection.
func (r *HostsRead) narrow(ctx context.Context, s *etcd.DB, ref model.Ref, f FleetState, sel *Selection, now time.Time) (err error) {
	*sel, r.Notes, err = Narrow(ctx, s, ref, f, *sel, now)
	r.selected = sel.Has
	return err
}

// Hosts lists all nodes in the natural order of names, and after them the machines without a name.
func Hosts(r HostsRead, now time.Time) []Host {
	boots, nameless := r.boots(now)
	called := calledFor(r.Spec)
	names := map[string]bool{}
	for _, some := range []iter.Seq[string]{maps.Keys(called), maps.Keys(r.Hosts), maps.Keys(boots)} {
		for name := range some {
			names[name] = true
		}
	}
	all := make([]Host, 0, len(names)+len(nameless))
	for _, name := range natural(names) {
		h, registered := r.Hosts[name]
		if !registered {
			h = model.Host{Node: name, Role: called[name]}
			if n, err := model.ParseNode(name); err == nil && (h.Role == "" || h.Role == n.Role) {
				h.Role, h.Hostname = n.Role, n.Hostname()
			}
		}
		if r.selected != nil && !r.selected(h.Role, name) {
			continue
		}
		one := Host{Host: h, Registered: registered, CalledFor: called[name] != "", FirstBoot: boots[name]}
		if i, ok := r.Identities[name]; ok {
			if one.Duplicate, one.Removed = i.Duplicate, i.Removed; i.Live() {
				one.Joined = &Join{i.User, i.Machine, i.Joined, i.Until, i.CA, i.Token, i.By}
			}
		}
		all = append(all, one)
	}
	for _, h := range nameless {
		if r.selected == nil || r.selected(h.Role, "") {
			all = append(all, h)
		}
	}
	return all
}

// LimitHosts leaves out hosts beyond the first limit (0: none), in this order: registered ones without a note last. It
// returns the number of hosts that it left out.
func LimitHosts(all []Host, limit int, now time.Time) (kept []Host, left int) {
	if limit <= 0 || len(all) <= limit {
		return all, 0
	}
	rank := func(h Host) int {
		if h.Registered && h.Note(now) == "" {
			return 1
		}
		return 0
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Host) int { return cmp.Compare(rank(a), rank(b)) })
	return all[:limit], len(all) - limit
}

// calledFor returns the nodes of an environment, numbered ones and members, with their roles.
func calledFor(e *environments.Environment) map[string]string {
	called := map[string]string{}
	for n := range e.Nodes() {
		called[n.String()] = n.Role
	}
	for _, role := range e.Roles {
		for _, n := range role.Members {
			called[n] = role.Name
		}
	}
	return called
}

// boots returns each node's first boot with the newest report, and the machines in their first boot without a name.
func (r HostsRead) boots(now time.Time) (byNode map[string]*FirstBoot, nameless []Host) {
	byNode = map[string]*FirstBoot{}
	for _, b := range r.FirstBoots {
		shown := &FirstBoot{FirstBoot: b, Stalled: b.Stands(now)}
		if b.Waits(now) {
			shown.Before, shown.Paused = b.Place(r.FirstBoots, now), r.Paused
		}
		switch was := byNode[b.Node]; {
		case b.Node == "" && b.Finished.IsZero():
			nameless = append(nameless, Host{Host: model.Host{Role: b.Role, Hostname: b.Hostname, MachineID: b.Machine}, FirstBoot: shown})
		case b.Node != "" && (was == nil || was.Heard.Before(b.Heard)):
			byNode[b.Node] = shown
		}
	}
	slices.SortFunc(nameless, func(a, b Host) int { return strings.Compare(a.MachineID, b.MachineID) })
	return byNode, nameless
}

// Package nodes is an operator's work on one node: add it to the host list, request a run, cancel its retirement; and the loop
// that requests runs of many. It must never connect to a node: a node reads its requests from etcd at its next tick.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
)

// NewHost is the entry in the host list of a node whose name contains its role, or of a machine of any name with a role.
func NewHost(e *environments.Environment, name, role string) (model.Host, error) {
	n, err := model.ParseNode(name)
	of, called := e.RoleOf(name)
	member := called && (err != nil || !e.Has(n))
	switch _, named := e.Role(n.Role); {
	case member && role != "" && role != of.Name:
		return model.Host{}, fmt.Errorf("cannot add %s as \"%s\": it is a member of role %s\nomit --role, or change the environment with `pulley env apply`", name, cli.Clean(role), of.Name)
	case member:
		return model.Host{Node: name, Role: of.Name}, nil
	case role == "":
		if err := fleet.CheckNode(e, nil, name); err != nil {
			return model.Host{}, fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE", err)
		}
		return model.Host{Node: name, Role: n.Role, Hostname: n.Hostname()}, err
	case err == nil && role == n.Role: // also one more than the environment calls for
		return model.Host{Node: name, Role: role, Hostname: n.Hostname()}, fleet.CheckRole(e, role)
	case err == nil && named:
		return model.Host{}, fmt.Errorf("cannot add %s as \"%s\": its name contains role %s\nomit --role, or rename the machine", name, cli.Clean(role), n.Role)
	}
	if err := model.CheckMember(name); err != nil {
		return model.Host{}, err
	}
	return model.Host{Node: name, Role: role}, fleet.CheckRole(e, role)
}

// NewRun is a request for one Puppet run.
func NewRun(by, why string, now time.Time) model.Request {
	id := fmt.Sprintf("%016x", rand.Uint64())
	return model.Request{ID: id, Do: model.RequestRun, Why: model.Prose(why), By: by, At: now.UTC().Truncate(time.Second)}
}

// RequestRun writes a request for a node that is not being retired: neither by its entry in the host list, nor by the
// machine record of an apply that has not requested it yet.
func RequestRun(ctx context.Context, s *etcd.DB, ref model.Ref, node string, r model.Request) error {
	record, err := records.In(s).Record(ctx, ref, node)
	if err == nil && record != nil && record.Phase == machines.Retiring {
		err = fmt.Errorf("cannot ask node %s: %w", node, fleet.ErrRetires)
	}
	if err == nil {
		err = fleet.In(s).Request(ctx, ref, node, r)
	}
	switch {
	case errors.Is(err, fleet.ErrNotListed):
		return notListed(err, ref)
	case errors.Is(err, fleet.ErrRetires):
		return fmt.Errorf("%w\nrun `pulley nodes run %s -e %s --cancel-retirement` to cancel the retirement and request a run", err, node, ref)
	}
	return err
}

// CancelRetirement ends the retirement of a node, and requests a run: the retire hooks may have undone the work of earlier
// runs. It holds the lock of an apply: none retires the node meanwhile. It writes the request last: after an interrupt the
// node is still retired, and the same call ends that. It returns the hold that it ended; nil for none.
func CancelRetirement(ctx context.Context, s *etcd.DB, ref model.Ref, node string, r model.Request) (ended *model.Hold, err error) {
	a, err := records.In(s).BeginApply(ctx, ref, r.By)
	if err != nil {
		return nil, fmt.Errorf("cannot cancel the retirement of %s: %w", node, err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	ctx, cancel := a.Context(ctx)
	defer cancel()
	record, hold, err := retirement(ctx, s, ref, node)
	if err != nil {
		return nil, err
	}
	if hold != nil {
		if err := a.Release(ctx, node); err != nil {
			return nil, err
		}
	}
	if record != nil && record.Phase == machines.Retiring {
		back := *record
		back.Phase, back.Ask, back.Drained, back.Problem = machines.Made, "", false, ""
		back.By, back.At = r.By, r.At
		if err := a.Put(ctx, back, record); err != nil {
			return hold, err
		}
	}
	return hold, a.Ask(ctx, node, r)
}

// PreviewCancel returns what CancelRetirement would: the hold that it would end, or its refusal. An apply may hold the lock.
func PreviewCancel(ctx context.Context, s *etcd.DB, ref model.Ref, node string, _ model.Request) (*model.Hold, error) {
	_, hold, err := retirement(ctx, s, ref, node)
	return hold, err
}

// retirement returns the machine record of a node that is being retired, nil for none, and the hold of the retirement.
func retirement(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (*machines.Record, *model.Hold, error) {
	f, err := fleet.In(s).One(ctx, ref, node)
	if err != nil {
		return nil, nil, err
	}
	record, err := records.In(s).Record(ctx, ref, node)
	if err != nil {
		return nil, nil, err
	}
	retiring := record != nil && record.Phase == machines.Retiring
	host, listed := f.Hosts[node]
	requested := listed && host.Retires()
	hold, held := f.Holds[etcd.Scope{Node: node}]
	held = held && hold.Kind == model.RetirementHold
	switch {
	case !listed && retiring:
		return nil, nil, fmt.Errorf("cannot cancel the retirement of %s: it is already removed from the fleet\nrun `pulley env plan` to see the plan for its machine", node)
	case !listed:
		return nil, nil, notListed(fmt.Errorf("cannot cancel the retirement of %s: %w", node, fleet.ErrNotListed), ref)
	case !retiring && !requested && !held:
		return nil, nil, fmt.Errorf("cannot cancel the retirement of %s: it is not being retired\nomit --cancel-retirement to request a run", node)
	}
	if !held {
		return record, nil, nil
	}
	return record, &hold, nil
}

func notListed(err error, ref model.Ref) error {
	return fmt.Errorf("%w\n`pulley nodes -e %s` lists the nodes; `pulley-agent bootstrap` registers a machine", err, ref)
}

// answerPoll is the interval between two looks at a node's answer.
const answerPoll = time.Second

// answerError is a missing answer, or the answer of a node that cannot run.
type answerError struct {
	text   string
	status int
}

func (e answerError) Error() string { return e.text }

// ExitStatus is the exit code of the command that waited.
func (e answerError) ExitStatus() int { return e.status }

// AwaitAnswer waits until the node has answered a request for a run, and returns the outcome of the run. A node
// that refuses, and a failed run, are errors.
func AwaitAnswer(ctx context.Context, s *control.Node, ref model.Ref, node string, r model.Request, wait time.Duration) (model.Outcome, error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(answerPoll)
	defer tick.Stop()
	for {
		status, _, err := s.Status(ctx, model.Identity{Environment: ref.String(), Node: node})
		if err != nil {
			return "", err
		}
		if a := status.Answer; a != nil && a.ID == r.ID {
			if a.Failed() {
				return "", answerError{fmt.Sprintf("cannot run Puppet on %s: %s", node, cli.Clean(a.Sentence())), cli.ExitDegraded}
			}
			return status.Outcome, nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-deadline.C:
			return "", answerError{fmt.Sprintf("cannot read the outcome: %s has not answered for %s\nthe request stays; run `pulley explain %s -e %s` to see the state of the node", node, cli.Duration(wait), node, ref), cli.ExitTimeout}
		case <-tick.C:
		}
	}
}

// MayAdd refuses a node that was removed from the fleet: etcd rejects its certificate, and its last report would count. joined reports whether a
// machine has joined as the node.
func MayAdd(ctx context.Context, s *access.Identities, ref model.Ref, node string) (joined bool, err error) {
	i, _, err := s.Get(ctx, ref, node)
	if err != nil || i == nil || i.Live() || i.Removed == nil {
		return i.Live(), err
	}
	return false, fmt.Errorf("cannot add %s: it was removed from the fleet, and etcd rejects its certificate\n"+
		"%s\nfor a new machine: `pulley env apply %s --replace %s`", node, fleet.JoinAgain(ref.String(), node), ref, node)
}

package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/join/server"
	"pulley/internal/model"
	"pulley/internal/puppetserver"
	"pulley/internal/specs"
)

// unfetchedKept is the time after a machine's join for which the key stays that was made for it. It may leave the step out.
const unfetchedKept = 24 * time.Hour

// presigning gets certificates of Puppet's CA for machines that did not boot yet: for each token that lets one machine join as one node.
// Several serves may do the same: they share the keys. It is not safe for concurrent use.
type presigning struct {
	*Tasks
	server *server.Server
	failed pauses
}

// place is a node for which a machine may come.
type place struct {
	spec   *environments.Environment // nil: its environment is gone
	token  *access.Token             // the newest that is in force; nil for none
	made   *access.Presigned         // nil: nothing
	holder access.Holder
}

// task is what is to be done for a place.
type task string

const (
	nothing task = ""
	presign task = "presign" // get its certificate
	forget  task = "forget"  // delete the key, which its machine did not fetch
	giveUp  task = "give up" // delete the key, and have its certificate cleaned: no machine comes
)

// next decides what is to be done for a place.
func (p place) next(node string, now time.Time) task {
	if i := p.holder.Identity; i.Live() {
		if p.made != nil && now.Sub(i.Joined) > unfetchedKept {
			return forget
		}
		return nothing
	}
	if !p.expected(node) {
		if p.made != nil {
			return giveUp
		}
		return nothing
	}
	if p.made != nil && p.made.Certificate != "" || !p.holder.Awaited() {
		return nothing
	}
	return presign
}

// expected reports whether a machine with a certificate of serve's may join as the node. A token that is older than the node's removal
// lets none join.
func (p place) expected(node string) bool {
	if p.spec == nil || p.spec.Puppet.CA.URL == "" || p.spec.Puppet.CA.How != settings.CertificatesMade || p.token == nil {
		return false
	}
	if i := p.holder.Identity; i != nil && i.Removed != nil && p.token.Created.Before(i.Removed.At.Truncate(time.Second)) {
		return false
	}
	_, known := p.spec.RoleOf(node)
	return known
}

// work does all that is due.
func (s *presigning) work(ctx context.Context) error {
	names, err := specs.In(s.DB).List(ctx)
	if err != nil {
		return err
	}
	of, stored := map[model.Ref]map[string]place{}, map[model.Ref]*environments.Environment{}
	var problems []error
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue
		}
		spec, _, err := specs.In(s.DB).Spec(ctx, ref)
		if err != nil { // its machines wait; those of others do not
			problems = append(problems, fmt.Errorf("environment %s: %w", ref, err))
			continue
		}
		if rewound, err := s.rewound(ctx, ref); err != nil || rewound {
			problems = append(problems, err)
			continue
		}
		made, _, err := access.IdentitiesIn(s.DB).AllPresigned(ctx, ref)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if len(made) == 0 && (spec == nil || spec.Puppet.CA.How != settings.CertificatesMade) {
			continue
		}
		of[ref], stored[ref] = map[string]place{}, spec
		for node, one := range made {
			of[ref][node] = place{spec: spec, made: &one}
		}
	}
	if len(of) == 0 {
		return errors.Join(problems...)
	}
	tokens, _, err := access.TokensIn(s.DB).List(ctx) // before the holders: a join uses the token up and takes the name at once
	if err != nil {
		return err
	}
	for _, t := range tokens { // the newest first
		ref, err := model.ParseRef(t.Environment)
		if err != nil || of[ref] == nil || t.Node == "" || t.Ended(s.Now()) {
			continue
		}
		if p := of[ref][t.Node]; p.token == nil {
			p.spec, p.token = stored[ref], &t
			of[ref][t.Node] = p
		}
	}
	for ref, places := range of {
		for node, p := range places {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if p.made != nil && p.made.Certificate != "" && p.expected(node) {
				continue // without a read for each of them
			}
			problems = append(problems, s.one(ctx, ref, node, p))
		}
	}
	return errors.Join(problems...)
}

// one works on one place.
func (s *presigning) one(ctx context.Context, ref model.Ref, node string, p place) (err error) {
	if p.holder, err = access.JoinsIn(s.DB).Holder(ctx, ref, node); err != nil {
		return err
	}
	switch p.next(node, s.Now()) {
	case forget:
		return access.IdentitiesIn(s.DB).DropPresigned(ctx, ref, node)
	case giveUp:
		s.Log.Info("no machine comes for a certificate of Puppet's CA: it is cleaned", "env", ref, "node", node)
		return access.JoinsIn(s.DB).GiveUpPresigned(ctx, ref, node, access.Removal{At: s.Now().UTC(), By: "serve"})
	case presign:
		role, _ := p.spec.RoleOf(node)
		url, name := p.spec.Puppet.CA.URL, ref.String()+" "+node
		if s.failed.wait(url, s.Now()) || s.failed.wait(name, s.Now()) {
			return nil
		}
		err := s.server.Presign(ctx, ref, p.spec, node, role.Name)
		var failed *puppetserver.Error
		switch {
		case errors.Is(err, etcd.ErrConflict):
			return nil // another serve works on it
		case err == nil:
			s.failed.end(url, name)
		case errors.As(err, &failed) && failed.OfServer():
			s.failed.begin(url, s.Now())
		default:
			s.failed.begin(name, s.Now())
		}
		return err
	}
	return nil
}

// pauses are the pauses after failures, by what failed. A pause is doubled with each further failure.
type pauses map[string]failure

type failure struct {
	pause time.Duration
	until time.Time
}

func (p pauses) wait(what string, now time.Time) bool { return now.Before(p[what].until) }

func (p pauses) begin(what string, now time.Time) {
	maps.DeleteFunc(p, func(_ string, f failure) bool { return now.Sub(f.until) > maxCleanupPause }) // for example of nodes that another serve removed
	pause := min(max(2*p[what].pause, cleanupPause), maxCleanupPause)
	p[what] = failure{pause, now.Add(pause)}
}

func (p pauses) end(what ...string) {
	for _, one := range what {
		delete(p, one)
	}
}

package machines_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/machines"
	"pulley/internal/model"
)

// cloud is the provider of one session with one mark.
type cloud struct {
	session *session
	mark    machines.Mark
}

// provider returns the provider of the fleet's machines.
func (x *session) provider() cloud { return cloud{x, x.site.mark()} }

// marked returns a provider with another mark.
func (x *session) marked(m machines.Mark) cloud { return cloud{x, m} }

var _ machines.Provider = cloud{}

// List implements machines.Provider.
func (c cloud) List(ctx context.Context) (all []machines.Machine, err error) {
	s := c.session.site
	err = c.session.call(ctx, "list", false, func(f fault) error {
		if f == throttle {
			return throttled
		}
		for _, b := range s.boxes {
			if s.hidden(b, false) && s.hosts[b.node].MachineID != b.ID {
				b.omitted = true
			}
			if b.mark == c.mark && s.listed(b) && !s.hidden(b, false) {
				m := b.Machine
				m.Addresses = slices.Clone(m.Addresses)
				all = append(all, s.shown(m))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

var throttled = &machines.WaitError{After: 7 * time.Second, Err: errors.New("too many requests")}

// Create implements machines.Provider.
func (c cloud) Create(ctx context.Context, o machines.Order) (m machines.Machine, err error) {
	s := c.session.site
	err = c.session.call(ctx, "create", false, func(f fault) error {
		switch f {
		case throttle:
			return throttled
		case nameBusy:
			return &machines.LaterError{After: busyFor, Err: errors.New("another machine of this name is still being deleted")}
		}
		if err := c.accepts(o, f); err != nil {
			return err
		}
		for _, b := range s.boxes {
			switch {
			case b.Name != o.Name || !s.listed(b) || s.hidden(b, true):
			case b.mark == c.mark:
				m = s.shown(b.Machine)
				return nil
			case b.mark.Owner == c.mark.Owner || b.mark.Owner == "":
				return &machines.TakenError{Name: o.Name}
			}
		}
		if s.Quota > 0 && len(s.boxes) >= s.Quota {
			return fmt.Errorf("%w: %d machines", machines.ErrQuota, s.Quota)
		}
		c.claimed(o)
		c.onlyOne(o)
		b := s.box(o, c.mark)
		b.fate, b.by = f, c.session
		m = s.shown(b.Machine)
		switch f {
		case late:
			b.appears = s.Now().Add(lateBy)
			b.runs = b.appears.Add(buildTakes)
			return errNoAnswer
		case makesTwo:
			s.box(o, c.mark).by = c.session
		}
		return nil
	})
	if err != nil {
		return machines.Machine{}, err
	}
	return m, nil
}

// shown returns a machine as this provider reports it.
func (s *modelled) shown(m machines.Machine) machines.Machine {
	if s.NoIDs {
		m.ID = ""
	}
	return m
}

// accepts refuses the orders that a cloud refuses.
func (c cloud) accepts(o machines.Order, f fault) error {
	_, err := model.ParseHostname(o.Name)
	switch {
	case f == refuses:
		return fmt.Errorf("%w: not accepted", machines.ErrRefused)
	case f == quota:
		return fmt.Errorf("%w: for now", machines.ErrQuota)
	case err != nil || strings.Contains(o.Name, "."):
		return fmt.Errorf("%w: %q is not a hostname", machines.ErrRefused, o.Name)
	case !slices.Contains([]string{"", "small", "large"}, o.Flavor) || !slices.Contains([]string{"", "debian"}, o.Image):
		return fmt.Errorf("%w: there is no flavor %q or no image %q", machines.ErrRefused, o.Flavor, o.Image)
	}
	return nil
}

// claimed records an error if a machine is ordered whose name is not claimed.
func (c cloud) claimed(o machines.Order) {
	s := c.session.site
	if c.session.approved == nil {
		return
	}
	if r, ok := s.records[o.Node]; !ok || r.Name != o.Name || r.Phase != machines.Making {
		// A session without the lock may have ordered before it lost the lock. Its next write fails.
		if s.holder == c.session {
			s.violated("machine %s was ordered, and the record is %+v", o.Name, r)
		}
	}
}

func (s *modelled) box(o machines.Order, mark machines.Mark) *box {
	s.count++
	now := s.Now()
	spread := time.Duration(sha256.Sum256(fmt.Append(nil, s.count))[0]) * time.Second / 16
	b := &box{
		Machine: machines.Machine{
			Name: o.Name, ID: fmt.Sprintf("m-%d", s.count), State: machines.Building, Flavor: cmp.Or(o.Flavor, "default"), Image: o.Image,
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", s.count/250, s.count%250+1)}, Created: now.UTC(),
		},
		asked: o.Flavor, number: s.count, mark: mark, labels: maps.Clone(o.Labels), userdata: slices.Clone(o.Userdata), appears: now, runs: now.Add(buildTakes + spread),
	}
	s.boxes = append(s.boxes, b)
	return b
}

// Delete implements machines.Provider.
func (c cloud) Delete(ctx context.Context, v machines.Ref) error {
	s := c.session.site
	return c.session.call(ctx, "delete", false, func(f fault) error {
		if f == throttle {
			return throttled
		}
		for _, b := range s.boxes {
			if b.Name != v.Name || v.ID != "" && b.ID != v.ID || b.mark != c.mark || !s.listed(b) || s.hidden(b, true) {
				continue
			}
			c.approved(b)
			c.session.mayEnd(b)
			b.ended = true
			switch {
			case f == deaf || b.State == machines.Deleting:
				continue
			case f == slow:
				b.goneAt = s.Now().Add(slowEndTakes)
			default:
				b.goneAt = s.Now().Add(endTakes)
			}
			b.State = machines.Deleting
		}
		return nil
	})
}

// approved records an error for the deletion of a machine that was not approved, is protected, or has no record.
func (c cloud) approved(b *box) {
	x := c.session
	if x.approved == nil || b.State == machines.Deleting {
		return
	}
	ordered := b.by == x && b.State == machines.Failed
	named := x.approved[machines.Ref{Name: b.Name, ID: b.ID}] || x.approved[machines.Ref{Name: b.Name}]
	if !named && !ordered {
		x.site.violated("machine %s (%s, %s) was deleted, and approved to were %v", b.Name, b.ID, b.State, x.approved)
	}
	n, err := model.ParseHostname(b.Name)
	if err != nil {
		x.site.violated("machine %q was deleted, whose name is not a node's", b.Name)
	}
	if x.site.spec != nil && x.site.holder == x && !ordered {
		if r, _ := x.site.spec.Role(n.Role); r.Protected {
			x.site.violated("machine %s was deleted, and %s is protected", b.Name, n.Role)
		}
	}
	if !slices.ContainsFunc(x.site.acts, func(a machines.Act) bool {
		return a.Node == n.String() && len(a.Reasons) > 0 && (a.Did == machines.Deleted || a.Did == machines.Replaced)
	}) {
		x.site.violated("machine %s was deleted without a history entry", b.Name)
	}
}

func roleOf(node string) string {
	n, err := model.ParseNode(node)
	if err != nil {
		return ""
	}
	return n.Role
}

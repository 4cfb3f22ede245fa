package server

import (
	"net/netip"
	"sync"

	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/store"
)

// refuse counts and logs a no.
func (d *Server) refuse(c *caller, e *join.RefusedError) {
	now := d.Now()
	d.limits.spend(c.party, now)
	d.metrics.refusals.WithLabelValues(string(e.Reason)).Inc()
	r := store.Refusal{At: now.UTC(), Path: c.URL.Path, From: c.from, Reason: string(e.Reason), Detail: clip.Text(e.Detail, maxSaid)}
	for i := 0; i+1 < len(c.say); i += 2 {
		text, _ := c.say[i+1].(string)
		switch c.say[i] {
		case "token":
			r.Token = text
		case "env":
			r.Environment = text
		case "node":
			r.Node = text
		case "machine":
			r.Machine = text
		}
	}
	d.refused.add(r)
	d.log.Warn("refused", append(c.say, "path", c.URL.Path, "from", c.from, "reason", string(e.Reason), "detail", clip.Text(e.Detail, maxSaid))...)
}

// refusals are those that etcd has not heard of.
type refusals struct {
	mu   sync.Mutex
	news store.Refusals
}

func (r *refusals) add(one store.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news.Add(one)
}

func (r *refusals) take() store.Refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = store.Refusals{}
	return news
}

// back returns what could not be written.
func (r *refusals) back(news store.Refusals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news.Merge(r.news)
	r.news = news
}

// network is what one party has of addresses: one of IPv4, 2⁶⁴ of IPv6.
func network(from string) string {
	a, err := netip.ParseAddr(from)
	if err != nil || a.Unmap().Is4() {
		return from
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return from
	}
	return p.String()
}

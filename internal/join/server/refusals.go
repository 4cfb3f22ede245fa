package server

import (
	"net/netip"

	"pulley/internal/join"
)

// refuse counts and logs a refusal.
func (d *Server) refuse(c *caller, e *join.RefusedError) {
	d.limits.spend(c.party, d.Now())
	d.metrics.refusals.WithLabelValues(string(e.Reason)).Inc()
	d.log.Warn("refused", append(c.say, "path", c.URL.Path, "from", c.from, "reason", string(e.Reason), "params", e.Params)...)
}

// network returns the part of an address that identifies one party: a complete IPv4 address, or an IPv6 /64.
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

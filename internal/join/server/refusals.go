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

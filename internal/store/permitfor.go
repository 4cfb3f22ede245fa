package store

import (
	"pulley/agent"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// permitFor computes the downgrades that a target needs for nodes on any of the named targets. It compares release and
// data, whichever changed. A node that missed the permit of an earlier change then needs only this one.
func permitFor(to agent.Target, named []agent.Target) (p trust.Permit, lower bool) {
	highest, newest := "", agent.Generation(0)
	for _, t := range named {
		newest = max(newest, t.Data)
		if _, err := ParseVersion(t.Release); err == nil && (highest == "" || compareVersions(t.Release, highest) > 0) {
			highest = t.Release
		}
	}
	if _, err := ParseVersion(to.Release); err == nil && highest != "" && compareVersions(to.Release, highest) < 0 {
		p.Release = &trust.ReleaseStep{From: highest, To: to.Release, Tree: to.Tree}
	}
	if to.Data < newest {
		p.Data = &trust.DataStep{From: int64(newest), To: int64(to.Data), Digest: to.DataDigest}
	}
	return p, p.Release != nil || p.Data != nil
}

// after returns the target of the change's scope after the change, for nodes without a closer target.
func (d Desires) after(c Change, role string) agent.Target {
	t := c.After
	if c.Node != "" {
		t = t.Overlay(d.Roles[role])
	}
	if c.Scope() != (etcd.Scope{}) {
		t = t.Overlay(d.Default)
	}
	return t
}

package store

import (
	"pulley/agent"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// permitFor says which steps down a target may be for nodes that stood on any of the named ones. Both its parts are looked
// at, whichever of them changed: a node that missed the permit of an earlier step then needs only this one.
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

// after is the target that a change leaves the nodes of its scope with, where nothing nearer to them counts.
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

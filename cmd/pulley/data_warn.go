package main

import (
	"context"
	"fmt"
	"path"
	"strings"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/store"
)

// mostLayersRead, of nodes, bounds what a warning may cost where thousands of nodes have layers of their own.
const mostLayersRead = 200

// warnOfLayers names the other live layers that have the key: those that the layer hides, and those that hide it.
func (d *dataOptions) warnOfLayers(ctx context.Context, s *store.Store, ref environments.Ref, fleet store.FleetState, data store.Data, layer hieradata.Layer, key string) error {
	var above, below []string
	ofNodes := 0
	for _, other := range data.SortedLayers() {
		if !related(fleet, layer, other) {
			continue
		}
		if kind, _, _ := strings.Cut(string(other), "/"); kind == "nodes" {
			if ofNodes++; ofNodes > mostLayersRead {
				continue
			}
		}
		b, err := s.Targets.Layer(ctx, ref.String(), data.Layers[other])
		if err != nil {
			return warnOnly(d.options, err)
		}
		if _, has, err := hieradata.Get(b, key); err != nil {
			return warnOnly(d.options, err)
		} else if has && other.Rank() > layer.Rank() {
			below = append(below, string(other))
		} else if has {
			above = append(above, string(other))
		}
	}
	if len(below) > 0 {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s shadows layer %s\n", program, key, layer, strings.Join(below, ", "))
	}
	if len(above) > 0 {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s is itself shadowed by layer %s, for its nodes\n", program, key, layer, strings.Join(above, ", "))
	}
	return nil
}

// related reports whether there may be a node that sees both layers.
func related(fleet store.FleetState, a, b hieradata.Layer) bool {
	kindA, nameA, _ := strings.Cut(string(a), "/")
	kindB, nameB, _ := strings.Cut(string(b), "/")
	switch {
	case kindA == kindB:
		return false // another node's or role's
	case kindA == "nodes" && kindB == "roles":
		return roleOf(fleet, nameA) == nameB
	case kindA == "roles" && kindB == "nodes":
		return roleOf(fleet, nameB) == nameA
	}
	return true
}

// roleOf is a node's role by the list of hosts, else by its name.
func roleOf(fleet store.FleetState, node string) string {
	if h, ok := fleet.Hosts[node]; ok {
		return h.Role
	}
	n, err := environments.ParseNode(node)
	if err != nil {
		return ""
	}
	return n.Role
}

// warn names what a key of one layer hides or is merged with: lower layers, and the release's own data.
func (d *dataOptions) warn(ctx context.Context, s *store.Store, ref environments.Ref, fleet store.FleetState, layer hieradata.Layer, key string) error {
	if fleet.Desires.Default.Release == "" {
		return nil
	}
	r, err := s.Releases.Get(ctx, fleet.Desires.Default.Release)
	if err != nil {
		return warnOnly(d.options, err)
	}
	files, err := content.ReadFiles(ctx, s.Releases, r.Content, hieradata.WantFile)
	if err != nil {
		return warnOnly(d.options, err)
	}
	places, merge, err := hieradata.Shadows(files, key)
	if err != nil {
		if err := warnOnly(d.options, err); err != nil {
			return err
		}
	}
	var names []string
	for _, p := range places {
		if concerns(fleet.Spec, layer, p.File) {
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	verb := "shadows"
	if merge != "" && merge != "first" {
		verb = "is merged (" + merge + ") with"
	}
	fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s %s %s of release %s\n", program, key, layer, verb, strings.Join(names, ", "), r.Version)
	return nil
}

// concerns leaves out files of a hierarchy that are another role's than the layer's: a value for controllers hides nothing
// in roles/compute.yaml.
func concerns(e *environments.Environment, layer hieradata.Layer, file string) bool {
	kind, name, _ := strings.Cut(string(layer), "/")
	role := name
	if n, err := environments.ParseNode(name); kind == "nodes" && err == nil {
		role = n.Role
	}
	if kind != "roles" && kind != "nodes" {
		return true
	}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	_, ofRole := e.Role(base)
	return !ofRole || base == role
}

// warnOnly reports an error that must not undo what was done already.
func warnOnly(o *options, err error) error {
	cli.Complain(o.env, program, fmt.Errorf("warning: cannot tell what it shadows: %w", err))
	return nil
}

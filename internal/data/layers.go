package data

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// layering answers which layers of live data nodes have. The environment file of a node's desired release has their order and
// the node's attributes; it reads each release once.
type layering struct {
	ctx    context.Context
	s      *etcd.DB
	ref    model.Ref
	f      fleet.FleetState
	read   map[string]hieradata.Hierarchy // by release
	served map[string]bool                // releases that were read, and name an environment of a Puppet server
}

func newLayering(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState) *layering {
	return &layering{ctx: ctx, s: s, ref: ref, f: f, read: map[string]hieradata.Hierarchy{"": {}}, served: map[string]bool{}}
}

// hierarchy returns the hierarchy of a release. Without a release it is the one of every environment.
func (l *layering) hierarchy(version string) (hieradata.Hierarchy, error) {
	if h, done := l.read[version]; done {
		return h, nil
	}
	r, err := release.In(l.s).Get(l.ctx, version)
	if err != nil {
		return hieradata.Hierarchy{}, err
	}
	l.served[version] = r.PuppetEnvironment != ""
	names := []string{"environments/" + l.ref.Environment + ".yaml", "environments/" + l.ref.Environment + ".yml"}
	files, err := content.ReadFiles(l.ctx, release.In(l.s), r.Content, func(name string) bool { return slices.Contains(names, name) })
	if err != nil {
		return hieradata.Hierarchy{}, err
	}
	for _, name := range names {
		text, has := files[name]
		if !has {
			continue
		}
		h, err := hieradata.ReadHierarchy(text)
		if err != nil {
			return hieradata.Hierarchy{}, fmt.Errorf("cannot read the layers of %s: %s of release %s: %w", l.ref, name, version, err)
		}
		l.read[version] = h
		return h, nil
	}
	l.read[version] = hieradata.Hierarchy{}
	return hieradata.Hierarchy{}, nil
}

// levels returns the levels of a node with its desired target.
func (l *layering) levels(node string) (hieradata.Levels, model.Target, error) {
	role := l.f.RoleOf(node)
	target := l.f.Desired(role, node).Wanted()
	h, err := l.hierarchy(target.Release)
	return h.Levels(role, node, l.ref.Stack), target, err
}

// check refuses the layer of an attribute that no release in force declares: no node would read it.
func (l *layering) check(layer hieradata.Layer) error {
	name, value, ok := layer.Attribute()
	if !ok {
		return nil
	}
	targets := []model.Target{l.f.Desires.Default}
	for _, pinned := range l.f.Desires.Pinned() {
		targets = append(targets, l.f.Desires.Target(pinned))
	}
	declares := false
	var values, order []string
	for _, t := range targets {
		h, err := l.hierarchy(t.Release)
		if err != nil {
			return err
		}
		if order == nil {
			order = h.Order()
		}
		declares = declares || slices.Contains(h.Order(), name)
		values = append(values, h.Values(name)...)
	}
	file := "environments/" + l.ref.Environment + ".yaml"
	if !declares {
		hint := fmt.Sprintf("its layers are %s; add %s to `layers:` of %s, then publish and promote the release", strings.Join(order, ", "), name, file)
		if near := model.SuggestName(name, order); near != "" {
			hint = fmt.Sprintf("did you mean %s=%s?", near, value)
		}
		return fmt.Errorf("cannot use layer %s: no release that is promoted in %s has attribute %s\n%s", layer, l.ref, name, hint)
	}
	if slices.Contains(values, value) {
		return nil
	}
	hint := fmt.Sprintf("give the attribute to a role or a node in %s, then publish and promote the release", file)
	if near := model.SuggestName(value, values); near != "" {
		hint = fmt.Sprintf("did you mean %s=%s?", name, near)
	}
	return fmt.Errorf("cannot use layer %s: no role and no node of %s has %s=%s\n%s", layer, l.ref, name, value, hint)
}

// concerned lists the registered nodes that see one of the layers.
func (l *layering) concerned(layers []hieradata.Layer) (nodes []string, err error) {
	for _, node := range slices.SortedFunc(maps.Keys(l.f.Hosts), fleet.CompareNatural) {
		levels, _, err := l.levels(node)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(layers, levels.Has) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// together reports whether a registered node has both layers, one of which is an attribute's.
func (l *layering) together(a, b hieradata.Layer) bool {
	for node := range l.f.Hosts {
		if levels, _, err := l.levels(node); err == nil && levels.Has(a) && levels.Has(b) {
			return true
		}
	}
	return false
}

// NodeLayers are the layers of a node's live data, the highest first.
type NodeLayers struct {
	Node       string           `json:"node"`
	Release    string           `json:"release"` // desired; its environment file has the order
	Generation model.Generation `json:"data"`
	Layers     []NodeLayer      `json:"layers"`
}

// NodeLayer is one level of a node's live data.
type NodeLayer struct {
	hieradata.Level
	Digest string `json:"digest,omitempty"` // of its data; "" without data
}

// LayersOf returns the layers of a node with its desired target.
func LayersOf(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (NodeLayers, error) {
	f, err := fleet.FindNode(ctx, s, ref, node)
	if err != nil {
		return NodeLayers{}, err
	}
	levels, target, err := newLayering(ctx, s, ref, f).levels(node)
	if err != nil {
		return NodeLayers{}, err
	}
	var g hieradata.Generation
	if target.Data != 0 {
		stored, err := targets.In(s).Generation(ctx, ref.String(), target.Data)
		if err != nil {
			return NodeLayers{}, err
		}
		g = stored.Generation
	}
	done := NodeLayers{Node: node, Release: target.Release, Generation: target.Data}
	for _, l := range levels {
		done.Layers = append(done.Layers, NodeLayer{l, g.Layers[l.Layer]})
	}
	return done, nil
}

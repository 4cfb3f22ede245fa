package data

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/publish/controlrepo"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// Shadows lists the other places that define a changed key.
type Shadows struct {
	Key      string
	Hides    []hieradata.Layer // lower live layers
	HiddenBy []hieradata.Layer // higher live layers, for their nodes
	Release  string            // version of the release whose data has the key too
	Places   []string          // places in that release
	Merge    string            // merge behavior of Hiera; "" or first: the live value hides the others
	Unread   string            // why the release's classes do not use the key or its value; "" if they do
	Err      error             // the list is missing or incomplete

	value  *hieradata.Value
	secret bool
	looked bool // other live data looks the key up
	kinds  bool // Unread is about the type of the value
}

// maxNodeLayers limits the layers of nodes that shadows reads.
const maxNodeLayers = 200

// maxShadowKeys limits the changed keys for which shadows looks.
const maxShadowKeys = 50

// shadows finds the other live layers and the places in the release that define a key which a change of the layer set.
func (l *layering) shadows(data targets.Data, layer hieradata.Layer, diffs []Difference) []Shadows {
	var found []Shadows
	for _, d := range diffs {
		if d.To != nil && len(found) < maxShadowKeys {
			found = append(found, Shadows{Key: d.Key, value: d.To, secret: d.ToSecret != ""})
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := l.liveShadows(data, layer, found)
	if err == nil {
		err = releaseShadows(l.ctx, l.s, l.f, layer, found)
	}
	if err != nil {
		found[0].Err = err
	}
	return found
}

func (l *layering) liveShadows(data targets.Data, layer hieradata.Layer, found []Shadows) error {
	h, err := l.hierarchy(l.f.Desires.Default.Release)
	if err != nil {
		return err
	}
	ofNodes := 0
	for _, other := range h.Sorted(data.SortedLayers()) {
		if other != layer && !l.related(layer, other) {
			continue
		}
		if kind, _, _ := strings.Cut(string(other), "/"); kind == "nodes" {
			if ofNodes++; ofNodes > maxNodeLayers {
				continue
			}
		}
		b, err := targets.In(l.s).Layer(l.ctx, l.ref.String(), data.Layers[other])
		if err != nil {
			return err
		}
		for i := range found {
			found[i].looked = found[i].looked || controlrepo.LooksUp(map[string][]byte{"layer.yaml": b}, found[i].Key)
			if other == layer {
				continue
			}
			_, has, err := hieradata.Get(b, found[i].Key)
			switch {
			case err != nil:
				return err
			case has && h.Rank(other) > h.Rank(layer):
				found[i].Hides = append(found[i].Hides, other)
			case has:
				found[i].HiddenBy = append(found[i].HiddenBy, other)
			}
		}
	}
	return nil
}

func releaseShadows(ctx context.Context, s *etcd.DB, f fleet.FleetState, layer hieradata.Layer, found []Shadows) error {
	if f.Desires.Default.Release == "" {
		return nil
	}
	r, err := release.In(s).Get(ctx, f.Desires.Default.Release)
	if err != nil {
		return err
	}
	files, err := content.ReadFiles(ctx, release.In(s), r.Content, func(name string) bool {
		return hieradata.WantFile(name) || slices.ContainsFunc(found, func(one Shadows) bool { return controlrepo.WantClass(one.Key)(name) })
	})
	if err != nil {
		return err
	}
	warns := false
	for i := range found {
		classes := maps.Clone(files)
		maps.DeleteFunc(classes, func(name string, _ []byte) bool { return !controlrepo.WantClass(found[i].Key)(name) })
		kind := found[i].value.PuppetType()
		if found[i].secret {
			kind = ""
		}
		found[i].Unread = controlrepo.KeyFlaw(classes, found[i].Key, kind)
		found[i].kinds = controlrepo.KeyFlaw(classes, found[i].Key, "") == ""
		warns = warns || found[i].Unread != ""
		places, merge, err := hieradata.Shadows(files, found[i].Key)
		found[i].Release, found[i].Merge, found[i].Err = r.Version, merge, err
		for _, p := range places {
			if concerns(f.Spec, layer, p.File) {
				found[i].Places = append(found[i].Places, p.String())
			}
		}
	}
	if !warns {
		return nil
	}
	all, err := content.ReadFiles(ctx, release.In(s), r.Content, controlrepo.MayLookUp)
	for i := range found {
		if found[i].Unread == "" {
			continue
		}
		if err != nil || found[i].looked || controlrepo.LooksUp(all, found[i].Key) || found[i].kinds && controlrepo.Converts(all) {
			found[i].Unread = ""
		}
	}
	return err
}

// related reports whether some node may use both layers.
func (l *layering) related(a, b hieradata.Layer) bool {
	f := l.f
	kindA, nameA, _ := strings.Cut(string(a), "/")
	kindB, nameB, _ := strings.Cut(string(b), "/")
	_, _, attributeA := a.Attribute()
	_, _, attributeB := b.Attribute()
	switch {
	case kindA == kindB:
		return false // of another node or role, or another value
	case (attributeA || attributeB) && nameA != "" && nameB != "":
		return l.together(a, b)
	case kindA == "nodes" && kindB == "roles":
		return f.RoleOf(nameA) == nameB
	case kindA == "roles" && kindB == "nodes":
		return f.RoleOf(nameB) == nameA
	}
	return true
}

// concerns excludes hierarchy files of other roles: a value for controllers does not hide values in roles/compute.yaml.
func concerns(e *environments.Environment, layer hieradata.Layer, file string) bool {
	kind, name, _ := strings.Cut(string(layer), "/")
	role := name
	if n, err := model.ParseNode(name); kind == "nodes" && err == nil {
		role = n.Role
	}
	if kind != "roles" && kind != "nodes" {
		return true
	}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	_, ofRole := e.Role(base)
	return !ofRole || base == role
}

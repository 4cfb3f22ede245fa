package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// GenerationEntry is a generation of live data in its history.
type GenerationEntry struct {
	Generation model.Generation  `json:"generation"`
	At         time.Time         `json:"at"`
	By         string            `json:"by"`
	Why        model.Prose       `json:"why,omitempty"`
	Layers     []hieradata.Layer `json:"layers"`            // that differ from the generation before it
	Current    bool              `json:"current,omitempty"` // the default target names it
	Rollout    string            `json:"rollout,omitempty"` // in progress, of it
	Signed     bool              `json:"signed"`            // not verified
}

// Generations lists the newest generations of an environment's live data, highest first, and how many more there are. Only
// generations that changed the layer only count, unless it is "". A limit of 0 is no limit.
func Generations(ctx context.Context, s *etcd.DB, ref model.Ref, only hieradata.Layer, limit int) (list []GenerationEntry, left int, err error) {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if err != nil {
		return nil, 0, err
	}
	numbers, err := targets.In(s).Generations(ctx, ref)
	if err != nil {
		return nil, 0, err
	}
	rolledOut, by, err := dataInRollout(ctx, s, ref, f.Desires.Gate)
	if err != nil {
		return nil, 0, err
	}
	read := map[model.Generation]desired.SignedGeneration{}
	get := func(n model.Generation) (desired.SignedGeneration, error) {
		if g, has := read[n]; has {
			return g, nil
		}
		g, err := targets.In(s).Generation(ctx, ref.String(), n)
		if err == nil {
			read[n] = g
		}
		return g, err
	}
	list = []GenerationEntry{}
	for i, n := range numbers {
		if limit > 0 && len(list) == limit {
			return list, len(numbers) - i, nil
		}
		g, err := get(n)
		if errors.Is(err, etcd.ErrNotFound) { // a prune removed it
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		var before desired.SignedGeneration
		if g.Previous > 0 {
			if before, err = get(model.Generation(g.Previous)); err != nil && !errors.Is(err, etcd.ErrNotFound) {
				return nil, 0, err
			}
		}
		changed := changedLayers(before.Generation, g.Generation)
		if only != "" && !slices.Contains(changed, only) {
			continue
		}
		one := GenerationEntry{
			Generation: n, At: g.At, By: g.By, Why: model.Prose(g.Message), Layers: changed, Current: n == f.Desires.Default.Data, Signed: len(g.Signatures) > 0,
		}
		if n == rolledOut {
			one.Rollout = by
		}
		list = append(list, one)
	}
	return list, 0, nil
}

// dataInRollout returns the generation that the rollout in progress brings to nodes, and the rollout; 0 without one. Its start is the
// last change of the history.
func dataInRollout(ctx context.Context, s *etcd.DB, ref model.Ref, gate model.Gate) (model.Generation, string, error) {
	if gate.Rollout == "" {
		return 0, "", nil
	}
	last, err := targets.In(s).Last(ctx, ref)
	if err != nil || last == nil || last.Rollout == nil || last.Rollout.ID != gate.Rollout {
		return 0, "", err
	}
	return last.Rollout.Target.Data, gate.Rollout, nil
}

// changedLayers lists the layers that differ between two generations, sorted.
func changedLayers(from, to hieradata.Generation) []hieradata.Layer {
	differ := map[hieradata.Layer]bool{}
	for _, pair := range [][2]map[hieradata.Layer]string{{from.Layers, to.Layers}, {to.Layers, from.Layers}} {
		for layer, digest := range pair[0] {
			if pair[1][layer] != digest {
				differ[layer] = true
			}
		}
	}
	return slices.AppendSeq([]hieradata.Layer{}, maps.Keys(differ))
}

// Diff returns what differs between two generations of live data, by layer and key, without the ciphertexts of secrets; 0 is the
// generation in force. It returns the number of the second.
func Diff(ctx context.Context, s *etcd.DB, ref model.Ref, from, to model.Generation) ([]Difference, model.Generation, error) {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if err != nil {
		return nil, 0, err
	}
	if to == 0 {
		to = f.Desires.Default.Data
	}
	a, err := generation(ctx, s, ref, from)
	if err != nil {
		return nil, 0, err
	}
	b, err := generation(ctx, s, ref, to)
	if err != nil {
		return nil, 0, err
	}
	_, diffs, err := diffGenerations(ctx, s, ref, targets.Data{Generation: a.Generation}, targets.Data{Generation: b.Generation})
	for i, d := range diffs {
		diffs[i] = d.hidden()
	}
	return diffs, to, err
}

// generation reads a generation; 0 is the one before the first, without layers.
func generation(ctx context.Context, s *etcd.DB, ref model.Ref, n model.Generation) (desired.SignedGeneration, error) {
	if n == 0 {
		return desired.SignedGeneration{}, nil
	}
	g, err := targets.In(s).Generation(ctx, ref.String(), n)
	if errors.Is(err, etcd.ErrNotFound) {
		err = fmt.Errorf("%w\nrun `pulley data history -e %s` to list the generations", err, ref)
	}
	return g, err
}

// diffGenerations returns the layers of the second that differ, an empty one for each that it lacks, and the keys.
func diffGenerations(ctx context.Context, s *etcd.DB, ref model.Ref, from, to targets.Data) (map[hieradata.Layer][]byte, []Difference, error) {
	layers, all := map[hieradata.Layer][]byte{}, []Difference{}
	changed := changedLayers(from.Generation, to.Generation)
	slices.SortFunc(changed, hieradata.CompareLayers)
	for _, layer := range changed {
		before, err := readLayer(ctx, s, ref, from, layer)
		if err != nil {
			return nil, nil, err
		}
		after, err := readLayer(ctx, s, ref, to, layer)
		if err != nil {
			return nil, nil, err
		}
		diffs, err := differences(layer, before, after)
		if err != nil {
			return nil, nil, err
		}
		layers[layer], all = after, append(all, diffs...)
	}
	return layers, all, nil
}

// Revert makes the next generation of live data with the layers of an earlier one; 0 is the state before the first.
func Revert(ctx context.Context, s *etcd.DB, ref model.Ref, to model.Generation, a promotion.Author) (Edited, error) {
	return again(func() (Edited, error) {
		f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
		if err != nil {
			return Edited{}, err
		}
		data, err := targets.In(s).Data(ctx, ref, f.Desires)
		if err != nil {
			return Edited{}, err
		}
		if _, err := guardRecipients(ctx, s, ref, &data); err != nil { // before the read of the layers, whose generation may be pruned
			return Edited{}, err
		}
		wanted, err := generation(ctx, s, ref, to)
		if err != nil {
			return Edited{}, err
		}
		layers, diffs, err := diffGenerations(ctx, s, ref, data, targets.Data{Generation: wanted.Generation})
		if err != nil {
			return Edited{}, err
		}
		if len(diffs) == 0 {
			return signData(ctx, s, ref, f, data, "", a)
		}
		return newLayering(ctx, s, ref, f).write(data, layers, diffs, a)
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// verifyData checks the generations of live data that the history or a target names, and their layers.
func (v verifyOptions) verifyData(ctx context.Context, s *store.Store, a *audit, trusted *trust.Signers, signedFor environments.Ref) error {
	names, err := s.Environments(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // no key of ours
		}
		generations, wanted, err := generationsOf(ctx, s, ref)
		if err != nil {
			return err
		}
		layers := map[string]bool{}
		for _, n := range slices.Sorted(maps.Keys(generations)) {
			key := fmt.Sprintf("environments/%s/data/generations/%012d", name, n)
			g, err := s.Generation(ctx, name, n)
			switch {
			case fatal(ctx, err):
				return err
			case errors.Is(err, store.ErrNotFound) && !wanted[n]:
				continue // pruned
			case err != nil:
				a.note(key, err.Error(), "")
				continue
			}
			a.result.Generations++
			a.result.Bytes += int64(len(g.Record))
			if digest := generations[n]; digest != "" && hieradata.Digest(g.Record) != digest {
				a.note(key, "damaged: it is not what the targets that name it say", "")
			}
			if trusted != nil && ref == signedFor {
				if _, err := trusted.Verify(trust.Data, ref.Environment, g.Record, g.Signatures, v.env.Now()); err != nil {
					a.refused(key, err, "", "set live data again with --sign-key FILE")
				} else {
					a.result.Signatures++
				}
			}
			for _, digest := range g.Layers {
				layers[digest] = true
			}
		}
		for digest := range layers {
			b, err := s.Layer(ctx, name, digest)
			if fatal(ctx, err) {
				return err
			}
			if err != nil {
				a.note(fmt.Sprintf("environments/%s/data/layers/%s", name, digest), err.Error(), "")
				continue
			}
			a.result.Layers++
			a.result.Bytes += int64(len(b))
			a.shown()
		}
	}
	return nil
}

// generationsOf are the generations that an environment's history and targets name, with the digests that they give, and
// which of them a target names now.
func generationsOf(ctx context.Context, s *store.Store, ref environments.Ref) (digests map[agent.Generation]string, wanted map[agent.Generation]bool, err error) {
	d, err := s.Desires(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	history, err := s.HistoryOf(ctx, ref, d)
	if err != nil {
		return nil, nil, err
	}
	digests, wanted = map[agent.Generation]string{}, map[agent.Generation]bool{}
	name := func(t agent.Target) {
		if t.Data > 0 {
			digests[t.Data] = t.DataDigest
		}
	}
	for _, c := range history {
		name(c.Before)
		name(c.After)
	}
	for _, t := range slices.Concat([]agent.Target{d.Default}, slices.Collect(maps.Values(d.Roles)), slices.Collect(maps.Values(d.Nodes))) {
		name(t)
		wanted[t.Data] = true
	}
	return digests, wanted, nil
}

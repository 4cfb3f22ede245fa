package main

import (
	"context"
	"errors"
	"io"

	"pulley/agent"
)

// agents reads the programs of all versions of pulley-agent to their end.
func (a *audit) agents(ctx context.Context) error {
	all, err := a.store.Agents(ctx)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, agent.ErrUnreachable) {
			return err
		}
		a.note("agents/", err.Error(), "")
		return nil
	}
	for _, r := range all {
		for platform, p := range r.Platforms {
			if err := p.CopyTo(ctx, io.Discard, a); fatal(ctx, err) {
				return err
			} else if err != nil {
				a.note("agents/"+r.Version, platform+": "+err.Error(), "")
			}
		}
	}
	return nil
}

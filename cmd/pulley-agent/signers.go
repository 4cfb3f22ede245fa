package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/nodeconfig"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// floorFile is what a node remembers so that nothing older than its last comes back unnoticed, in the state folder.
const floorFile = "trust.json"

// signersFiles are where this node's signers are written down, and what it attempted so far. A named file has to be there;
// one that is not is its default, and may be missing.
type signersFiles struct {
	allowed, revoked           string
	allowedNamed, revokedNamed bool
	floor                      string
}

// read returns who may sign, and what was attempted. Nil signers mean that signatures are not checked: there is no list and
// there never was one. Once there was, its loss is an error, as is all that can't be read: nothing new is taken then.
func (f signersFiles) read() (*trust.Signers, trust.Floor, error) {
	floor, err := trust.LoadFloor(f.floor)
	if err != nil {
		return nil, floor, err
	}
	allowed, err := bounded.ReadFile(f.allowed, nodeconfig.MaxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !f.allowedNamed && !floor.Required:
		return nil, floor, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, floor, fmt.Errorf("the list of those who may sign for it, %s, is gone", f.allowed)
	case err != nil:
		return nil, floor, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	revoked, err := bounded.ReadFile(f.revoked, nodeconfig.MaxFileBytes)
	if err != nil && (f.revokedNamed || !errors.Is(err, fs.ErrNotExist)) {
		return nil, floor, fmt.Errorf("cannot read the revoked keys: %w", err)
	}
	signers, err := trust.ParseSigners(allowed, revoked)
	if err != nil {
		return nil, floor, fmt.Errorf("%s, %s: %w", f.allowed, f.revoked, err)
	}
	return signers, floor, nil
}

// words are what a person at the machine reads about it.
func (f signersFiles) words() string {
	signers, _, err := f.read()
	switch {
	case err != nil:
		return "nothing new is taken: " + err.Error()
	case signers == nil:
		return "not checked"
	}
	return "checked"
}

// prover refuses what is new to this node and not proven to be authentic.
type prover struct {
	files signersFiles
	store *store.Store
	now   func() time.Time
}

// signers is read for each target anew: a release may have changed the list, and the agent may be a daemon.
func (p *prover) signers() (*trust.Signers, trust.Floor, error) {
	signers, floor, err := p.files.read()
	if err != nil {
		return nil, floor, refusal("", err)
	}
	if signers != nil && !floor.Required {
		floor.Required = true
		err = floor.Save(p.files.floor)
	}
	return signers, floor, err
}

// release says whether the record of a target's release is authentic.
func (p *prover) release(signers *trust.Signers, id agent.Identity, t agent.Target, r store.SignedRelease) error {
	what := "release " + t.Release
	if r.Version != t.Release || r.Content.Tree != t.Tree {
		return refusal(what, fmt.Errorf("its record is of %s with tree %.12s, and the target names tree %.12s", r.Version, r.Content.Tree, t.Tree))
	}
	if _, err := signers.Verify(trust.Release, id.Environment, r.Record, r.Signatures, p.now()); err != nil {
		return refusal(what, err)
	}
	return nil
}

// data says whether the generation of a target's data is authentic, and of this very fleet.
func (p *prover) data(signers *trust.Signers, id agent.Identity, t agent.Target, g store.SignedGeneration) error {
	what := fmt.Sprintf("data generation %d", t.Data)
	if hieradata.Digest(g.Record) != t.DataDigest {
		return refusal(what, fmt.Errorf("its record is %.12s, and the target names %.12s", hieradata.Digest(g.Record), t.DataDigest))
	}
	if _, err := signers.Verify(trust.Data, id.Environment, g.Record, g.Signatures, p.now()); err != nil {
		return refusal(what, err)
	}
	if g.Environment != id.Environment || g.Number != int64(t.Data) {
		return refusal(what, fmt.Errorf("what was signed is generation %d of environment %q, and this node is of %q", g.Number, g.Environment, id.Environment))
	}
	return nil
}

// rise returns the floor to save before a target is attempted. Permits are asked for only where it lies below.
func (p *prover) rise(ctx context.Context, signers *trust.Signers, floor trust.Floor, id agent.Identity, t agent.Target) (trust.Floor, error) {
	target := trust.Target{Environment: id.Environment, Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
	risen, err := floor.Check(target, nil)
	if err == nil {
		return risen, nil
	}
	var permits []trust.Permit
	readErr := p.store.Permits(ctx, id.Environment, func(page []store.SignedPermit) bool {
		for _, s := range page {
			if _, err := signers.Verify(trust.Rollback, id.Environment, s.Record, s.Signatures, p.now()); err == nil {
				permits = append(permits, s.Permit)
			}
		}
		risen, err = floor.Check(target, permits)
		return err != nil
	})
	if readErr != nil {
		return floor, readErr
	}
	if err != nil {
		return floor, refusal("", err)
	}
	return risen, nil
}

// refusal is err as the agent takes it: a sentence about the target. Hints are for terminals.
func refusal(what string, err error) error {
	why, _, _ := strings.Cut(err.Error(), "\n")
	if what != "" {
		why = what + ": " + why
	}
	return &agent.RefusedError{Why: why}
}

package main

import (
	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// markFile holds the node's high-water mark, in the state folder.
const markFile = "trust.json"

// signatureCheck is the line of `pulley-agent status` about signatures.
func signatureCheck(f trust.Files) string {
	signers, _, err := f.Read()
	switch {
	case err != nil:
		return "nothing new is taken: " + err.Error()
	case signers == nil:
		return "not checked"
	}
	return "checked"
}

// wanted is the part of a target that trust judges.
func wanted(id agent.Identity, t agent.Target) trust.Target {
	return trust.Target{Environment: id.Environment, Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
}

func releaseRecord(r store.SignedRelease) trust.Record {
	return trust.Record{Version: r.Version, Tree: r.Content.Tree, Bytes: r.Record, Signatures: r.Signatures}
}

func dataRecord(g store.SignedGeneration) trust.Record {
	return trust.Record{Environment: g.Environment, Number: g.Number, Digest: hieradata.Digest(g.Record), Bytes: g.Record, Signatures: g.Signatures}
}

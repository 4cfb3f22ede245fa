package server

import (
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/store"
)

// ask is a request to join whose signing request holds and that was made for its connection.
type ask struct {
	join.Request
	id, secret string // of the token
	from       string // address
	key        string // digest of the public key
	env, node  string // that it is about; node is "" while no number is claimed
	claimed    bool   // the node is the lowest free number of a role
}

// verdict is what a request gets.
type verdict struct {
	refused *join.RefusedError // nil: it joins
	role    string
	again   bool // the same key under the same name: its answer was lost
	clone   bool // another machine came under a name that is taken
}

func no(reason join.Reason, p join.Params) *join.RefusedError {
	return &join.RefusedError{Reason: reason, Params: p}
}

// judgeToken says whether whoever sent id and secret may ask at all; nil for yes. That its uses are gone is judged later:
// who asks again costs none.
func judgeToken(t *store.Token, secret string, now time.Time) *join.RefusedError {
	switch {
	case t == nil:
		return no(join.UnknownToken, join.Params{})
	case !t.Matches(secret):
		return no(join.ForgedToken, join.Params{})
	case t.Revoked != nil:
		return no(join.RevokedToken, join.Params{})
	case !now.Before(t.Expires):
		return no(join.ExpiredToken, join.Params{At: t.Expires.UTC(), Server: now.UTC()})
	}
	return nil
}

// judgeScope compares what a machine believes of itself with what its token is for.
func judgeScope(t store.Token, r join.Request) *join.RefusedError {
	switch {
	case r.Environment != "" && r.Environment != t.Environment:
		return no(join.WrongEnvironment, join.Params{Claimed: clip.Text(r.Environment, maxSaid)})
	case t.Node != "" && r.Node != "" && r.Node != t.Node:
		return no(join.WrongNode, join.Params{Claimed: clip.Text(r.Node, maxSaid)})
	case t.Role != "" && r.Role != "" && r.Role != t.Role:
		return no(join.WrongRole, join.Params{Claimed: clip.Text(r.Role, maxSaid)})
	}
	return nil
}

// naming says which node a request is about, or of which role it is to get a number.
func naming(t store.Token, r join.Request) (node, role string, refused *join.RefusedError) {
	switch {
	case t.Node != "":
		return t.Node, "", nil
	case r.Node != "":
		return r.Node, "", nil
	case t.Role != "":
		return "", t.Role, nil
	case r.Role != "":
		return "", r.Role, nil
	}
	n, err := environments.ParseHostname(r.Machine.Hostname)
	if err != nil {
		return "", "", no(join.NoName, join.Params{Claimed: clip.Text(r.Machine.Hostname, maxSaid)})
	}
	return n.String(), "", nil
}

// judge decides on a request about a node that has a name, from what was read and the time alone.
func judge(a ask, f store.JoinFacts, now time.Time) verdict {
	if refused := judgeToken(f.Token, a.secret, now); refused != nil {
		return verdict{refused: refused}
	}
	if refused := judgeScope(*f.Token, a.Request); refused != nil {
		return verdict{refused: refused}
	}
	// The token was read before as well, to learn what the request is about: it may have been written since.
	switch {
	case f.Token.Environment != a.env:
		return verdict{refused: no(join.WrongEnvironment, join.Params{Claimed: a.env})}
	case f.Token.Node != "" && f.Token.Node != a.node:
		return verdict{refused: no(join.WrongNode, join.Params{Claimed: a.node})}
	}
	role, refused := roleOf(a, f)
	if refused != nil {
		return verdict{refused: refused}
	}
	v := judgeName(a, f)
	v.role = role
	if was := f.Was; was != nil && v.refused == nil && !v.again && f.Minted <= was.Revision {
		v.refused = no(join.WasRemoved, removed(was.As, *was.Removed))
	}
	if v.refused == nil && !v.again && f.Token.UsedUp() {
		v.refused = no(join.UsedUpToken, join.Params{Used: f.Token.Used})
	}
	return v
}

// roleOf is the role that the node has: by the environment, where that calls for it, else by the list of hosts.
func roleOf(a ask, f store.JoinFacts) (string, *join.RefusedError) {
	if f.Spec == nil {
		return "", no(join.NoEnvironment, join.Params{Environment: f.Token.Environment})
	}
	role := ""
	if r, ok := f.Spec.RoleOf(a.node); ok {
		role = r.Name
	} else if f.Host != nil {
		role = f.Host.Role
	} else {
		return "", no(join.NotCalledFor, join.Params{Node: a.node})
	}
	for _, want := range []string{f.Token.Role, a.Role} {
		if want != "" && want != role {
			return "", no(join.WrongRole, join.Params{Node: a.node, Role: role})
		}
	}
	return role, nil
}

// judgeName asks whether the name is this machine's to have. An operator's word for a name that somebody had is a token
// for exactly this node that was made afterwards; what came afterwards, etcd's revisions tell.
func judgeName(a ask, f store.JoinFacts) verdict {
	exact := f.Token.Node != ""
	switch {
	case f.Identity.Live():
		return judgeTaken(a, f, exact && f.Minted > f.Identity.Revision)
	case f.Identity != nil && f.Identity.Removed != nil:
		own := f.Identity.Machine == a.Machine.ID
		if f.Minted > f.Changed || a.claimed && !own || f.Identity.Removed.Left && own {
			return verdict{}
		}
		return verdict{refused: no(join.WasRemoved, removed(a.node, *f.Identity.Removed))}
	case f.Host != nil && a.claimed:
		// Put on the list since the number was claimed. Machine ids are no secrets: none gets a listed name by a claim.
		return verdict{refused: no(join.HeldByAnother, join.Params{Node: a.node})}
	case f.Host != nil && f.Host.MachineID != "" && f.Host.MachineID != a.Machine.ID && !(exact && f.Minted > f.Listed):
		return verdict{refused: no(join.HeldByAnother, join.Params{Node: a.node, Machine: begin(f.Host.MachineID)})}
	}
	return verdict{}
}

func judgeTaken(a ask, f store.JoinFacts, fresh bool) verdict {
	i := f.Identity
	own := i.Machine == a.Machine.ID
	holder := join.Params{Node: a.node, At: i.Joined.UTC(), Machine: begin(i.Machine)}
	switch {
	case own && i.Key == a.key:
		return verdict{again: true}
	case !own && f.Holder.Locks():
		holder.Step = f.Holder.Step
		return verdict{clone: true, refused: no(join.LockedByAnother, holder)}
	case fresh:
		return verdict{}
	case own:
		return verdict{refused: no(join.NameTaken, holder)}
	}
	return verdict{clone: true, refused: no(join.HeldByAnother, holder)}
}

// begin is as much of a machine id as tells two machines apart: who is refused must not learn what to say to get in.
func begin(machine string) string {
	const shown = 8
	if len(machine) <= shown {
		return machine
	}
	return machine[:shown] + "…"
}

func removed(node string, r store.Removal) join.Params {
	return join.Params{Node: node, At: r.At.UTC(), By: r.By, Why: agent.Prose(r.Why)}
}

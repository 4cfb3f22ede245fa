package server

import (
	"time"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/model"
)

// joining is a request to join with a valid signing request and a proof for its connection.
type joining struct {
	join.Request
	id, secret string // of the token
	from       string // address
	key        string // digest of the public key
	env, node  string // of the request; node is "" until a number is claimed
	claimed    bool   // the node is the lowest free number of a role
}

// verdict is the decision on a request.
type verdict struct {
	refused   *join.RefusedError // nil: it joins
	role      string
	again     bool // the same key under the same name: its answer was lost
	duplicate bool // another machine holds the name
}

func no(reason join.Reason, p join.Params) *join.RefusedError {
	return &join.RefusedError{Reason: reason, Params: p}
}

// judgeToken refuses a token that is unknown, revoked or expired, or a wrong secret. Uses are judged later: a repeated
// request costs none.
func judgeToken(t *access.Token, secret string, now time.Time) *join.RefusedError {
	switch {
	case t == nil:
		return no(join.UnknownToken, join.Params{})
	case !t.Matches(secret):
		return no(join.ForgedToken, join.Params{})
	case t.Revoked != nil:
		return no(join.RevokedToken, join.Params{Environment: t.Environment, Operator: t.Operator})
	case !now.Before(t.Expires):
		return no(join.ExpiredToken, join.Params{At: t.Expires.UTC(), Server: now.UTC(), Environment: t.Environment, Operator: t.Operator})
	}
	return nil
}

// judgeScope compares the claims of a machine with the scope of its token.
func judgeScope(t access.Token, r join.Request) *join.RefusedError {
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

// naming returns the node of a request, or the role that must assign a number.
func naming(t access.Token, r join.Request) (node, role string, refused *join.RefusedError) {
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
	n, err := model.ParseHostname(r.Machine.Hostname)
	if err != nil {
		return "", "", no(join.NoName, join.Params{Claimed: clip.Text(r.Machine.Hostname, maxSaid)})
	}
	return n.String(), "", nil
}

// judge decides on a request for a named node, from the facts in etcd and the time.
func judge(a joining, f access.JoinFacts, now time.Time) verdict {
	if refused := judgeToken(f.Token, a.secret, now); refused != nil {
		return verdict{refused: refused}
	}
	if refused := judgeScope(*f.Token, a.Request); refused != nil {
		return verdict{refused: refused}
	}
	// An earlier read of the token determined the node. The token may have changed since.
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
		v.refused = machineRemoved(a.Machine.ID, was.As, *was.Removed)
	}
	if v.refused == nil && !v.again && f.Token.UsedUp() {
		v.refused = no(join.UsedUpToken, join.Params{Used: f.Token.Used})
	}
	return v
}

// roleOf returns the role of the node: by the environment, else by the host list.
func roleOf(a joining, f access.JoinFacts) (string, *join.RefusedError) {
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

// judgeName decides whether this machine may have the name. For a name with an earlier owner it needs a token for
// exactly this node that is newer, by etcd's revisions, than the owner's record.
func judgeName(a joining, f access.JoinFacts) verdict {
	exact := f.Token.Node != ""
	switch {
	case f.Identity.Live():
		return judgeTaken(a, f, exact && f.Minted > f.Identity.Revision)
	case f.Identity != nil && f.Identity.Removed != nil:
		own := f.Identity.Machine == a.Machine.ID
		if f.Minted > f.Changed || a.claimed && !own || f.Identity.Removed.Left && own {
			return verdict{}
		}
		if a.claimed { // no request named this node
			return verdict{refused: machineRemoved(a.Machine.ID, a.node, *f.Identity.Removed)}
		}
		return verdict{refused: no(join.WasRemoved, removed(a.node, *f.Identity.Removed))}
	case f.Host != nil && a.claimed:
		// The node was listed after the number was claimed. Machine IDs are not secret: no claim gets a listed name.
		return verdict{refused: no(join.HeldByAnother, join.Params{Node: a.node})}
	case f.Host != nil && f.Host.MachineID != "" && f.Host.MachineID != a.Machine.ID && !(exact && f.Minted > f.Listed):
		return verdict{refused: no(join.HeldByAnother, join.Params{Node: a.node, Machine: begin(f.Host.MachineID)})}
	}
	return verdict{}
}

func judgeTaken(a joining, f access.JoinFacts, fresh bool) verdict {
	i := f.Identity
	own := i.Machine == a.Machine.ID
	holder := join.Params{Node: a.node, At: i.Joined.UTC(), Machine: begin(i.Machine)}
	switch {
	case own && i.Key == a.key:
		return verdict{again: true}
	case !own && f.Holder.Locks():
		holder.Step = f.Holder.Step
		return verdict{duplicate: true, refused: no(join.LockedByAnother, holder)}
	case fresh:
		return verdict{}
	case own:
		return verdict{refused: no(join.NameTaken, holder)}
	}
	return verdict{duplicate: true, refused: no(join.HeldByAnother, holder)}
}

// begin returns the first digits of a machine ID: a refused machine must not learn an ID with which it could join.
func begin(machine string) string {
	const shown = 8
	if len(machine) <= shown {
		return machine
	}
	return machine[:shown] + "…"
}

// machineRemoved refuses a machine whose machine ID is that of a removed node: it is that node's machine, or a copy of it.
func machineRemoved(machine, node string, r access.Removal) *join.RefusedError {
	p := removed(node, r)
	p.Sender = machine
	return no(join.MachineRemoved, p)
}

func removed(node string, r access.Removal) join.Params {
	return join.Params{Node: node, At: r.At.UTC(), By: r.By, Why: model.Prose(r.Why)}
}

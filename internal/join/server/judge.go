package server

import (
	"fmt"
	"time"

	"pulley/environments"
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

func no(reason join.Reason, detail, next string) *join.RefusedError {
	return &join.RefusedError{Reason: reason, Detail: detail, Next: next}
}

const anotherToken = "an operator makes one: pulley token create"

// judgeToken says whether whoever sent id and secret may ask at all; nil for yes. That its uses are gone is judged later:
// who asks again costs none.
func judgeToken(t *store.Token, secret string, now time.Time) *join.RefusedError {
	switch {
	case t == nil:
		return no(join.UnknownToken, "", anotherToken)
	case !t.Matches(secret):
		return no(join.ForgedToken, "", "copy all of what `pulley token create` printed")
	case t.Revoked != nil:
		return no(join.RevokedToken, "", anotherToken)
	case !now.Before(t.Expires):
		return no(join.ExpiredToken, "at "+t.Expires.UTC().Format(time.RFC3339)+", and here it is "+now.UTC().Format(time.RFC3339), anotherToken)
	}
	return nil
}

// judgeScope compares what a machine believes of itself with what its token is for.
func judgeScope(t store.Token, r join.Request) *join.RefusedError {
	switch {
	case r.Environment != "" && r.Environment != t.Environment:
		return no(join.WrongEnvironment, "the machine says "+r.Environment, "make one with `pulley token create -e "+r.Environment+"`")
	case t.Node != "" && r.Node != "" && r.Node != t.Node:
		return no(join.WrongNode, "the machine says "+r.Node, anotherToken)
	case t.Role != "" && r.Role != "" && r.Role != t.Role:
		return no(join.WrongRole, "the machine says "+r.Role, anotherToken)
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
		return "", "", no(join.NoName, "its hostname "+fmt.Sprintf("%q", r.Machine.Hostname)+" is none of a node", "name the node or the role in its userdata")
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
		return verdict{refused: no(join.WrongEnvironment, "it is not for "+a.env, anotherToken)}
	case f.Token.Node != "" && f.Token.Node != a.node:
		return verdict{refused: no(join.WrongNode, "it is not for "+a.node, anotherToken)}
	}
	role, refused := roleOf(a, f)
	if refused != nil {
		return verdict{refused: refused}
	}
	v := judgeName(a, f)
	v.role = role
	if was := f.Was; was != nil && v.refused == nil && !v.again && f.Minted <= was.Revision {
		v.refused = no(join.WasRemoved, was.As+removedBy(*was.Removed), "with a token that is made now it may join again: pulley token create")
	}
	if v.refused == nil && !v.again && f.Token.UsedUp() {
		v.refused = no(join.UsedUpToken, fmt.Sprintf("it was used %d times", f.Token.Used), anotherToken)
	}
	return v
}

// roleOf is the role that the node has: by the environment, where that calls for it, else by the list of hosts.
func roleOf(a ask, f store.JoinFacts) (string, *join.RefusedError) {
	if f.Spec == nil {
		return "", no(join.NoEnvironment, f.Token.Environment, "store it: pulley env apply")
	}
	role := ""
	if r, ok := f.Spec.RoleOf(a.node); ok {
		role = r.Name
	} else if f.Host != nil {
		role = f.Host.Role
	} else {
		return "", no(join.NotCalledFor, a.node, "raise the cardinality of its role, or name it among the role's members, with `pulley env apply`; or put it on the list with `pulley nodes add`")
	}
	for _, want := range []string{f.Token.Role, a.Role} {
		if want != "" && want != role {
			return "", no(join.WrongRole, a.node+" is a "+role, anotherToken)
		}
	}
	return role, nil
}

// judgeName asks whether the name is this machine's to have. An operator's word for a name that somebody had is a token
// for exactly this node that was made afterwards; what came afterwards, etcd's revisions tell.
func judgeName(a ask, f store.JoinFacts) verdict {
	exact := f.Token.Node != ""
	word := "with `pulley token create --node " + a.node + "`, made now, it may"
	switch {
	case f.Identity.Live():
		return judgeTaken(a, f, exact && f.Minted > f.Identity.Revision, word)
	case f.Identity != nil && f.Identity.Removed != nil:
		own := f.Identity.Machine == a.Machine.ID
		if f.Minted > f.Changed || a.claimed && !own || f.Identity.Removed.Left && own {
			return verdict{}
		}
		return verdict{refused: no(join.WasRemoved, a.node+removedBy(*f.Identity.Removed), "to have it back: "+word)}
	case f.Host != nil && a.claimed:
		// Put on the list since the number was claimed. Machine ids are no secrets: none gets a listed name by a claim.
		return verdict{refused: no(join.HeldByAnother, a.node+" is on the list", "if this machine is to be it: "+word)}
	case f.Host != nil && f.Host.MachineID != "" && f.Host.MachineID != a.Machine.ID && !(exact && f.Minted > f.Listed):
		return verdict{refused: no(join.HeldByAnother, a.node+" is on the list with machine id "+begin(f.Host.MachineID), "if this machine is to be it: "+word)}
	}
	return verdict{}
}

func judgeTaken(a ask, f store.JoinFacts, fresh bool, word string) verdict {
	i := f.Identity
	own := i.Machine == a.Machine.ID
	joined := a.node + " joined at " + i.Joined.UTC().Format(time.RFC3339) + " with machine id " + begin(i.Machine)
	switch {
	case own && i.Key == a.key:
		return verdict{again: true}
	case !own && f.Holder.Locks():
		return verdict{clone: true, refused: no(join.LockedByAnother, joined+", and is at step "+f.Holder.Step,
			"let it finish, or free the name: pulley nodes unlock "+a.node+" -m REASON")}
	case fresh:
		return verdict{}
	case own:
		return verdict{refused: no(join.NameTaken, joined, "if it was installed anew: "+word)}
	}
	return verdict{clone: true, refused: no(join.HeldByAnother, joined, "if this machine is to replace it: "+word)}
}

// begin is as much of a machine id as tells two machines apart: who is refused must not learn what to say to get in.
func begin(machine string) string {
	const shown = 8
	if len(machine) <= shown {
		return machine
	}
	return machine[:shown] + "…"
}

func removedBy(r store.Removal) string {
	text := " at " + r.At.UTC().Format(time.RFC3339)
	if r.By != "" {
		text += " by " + r.By
	}
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

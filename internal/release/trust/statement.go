package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"pulley/internal/model/refusal"
)

// statementFormat is the version of statements that this program writes. It refuses newer versions.
const statementFormat = 1

// maxSkew is how far the clock of a signer may be ahead of a node's clock.
const maxSkew = 5 * time.Minute

// Statement names the targets that are in force in an environment, of all scopes, until an end. It binds release, data and
// role to each other. It is one line of JSON, signed in the namespace Current.
type Statement struct {
	V           int             `json:"v"`
	Environment string          `json:"environment"` // with its stack
	Epoch       int64           `json:"epoch"`       // of the last change of a target
	Default     Part            `json:"default"`
	Roles       map[string]Part `json:"roles,omitempty"` // with a target of their own
	Nodes       map[string]Part `json:"nodes,omitempty"` // with a target of their own
	Rollout     *Rolled         `json:"rollout,omitempty"`
	Off         bool            `json:"off,omitempty"` // nodes need no statement until a later one
	By          string          `json:"by,omitempty"`
	At          time.Time       `json:"at"`
	Until       time.Time       `json:"until,omitzero"` // zero only with Off
}

// Part is the target of one scope. Empty parts are inherited.
type Part struct {
	Release    string `json:"release,omitempty"` // version
	Tree       string `json:"tree,omitempty"`    // hash of the release's tree
	Data       int64  `json:"data,omitempty"`    // generation
	DataDigest string `json:"data_digest,omitempty"`
}

// Rolled is the target that a staged rollout gives to a scope, node by node. Until the rollout ends, this target and the present
// one are both in force.
type Rolled struct {
	Role string `json:"role,omitempty"` // "" for the default
	Part        // empty parts stay those of the scope
}

// SignedStatement is a statement with its signed bytes. The signatures are not verified yet.
type SignedStatement struct {
	Statement
	Record     []byte // one line of JSON, without its newline
	Signatures []byte // nil if it is not signed
}

// Encode returns the statement as a record: one line, without its newline.
func (s Statement) Encode() ([]byte, error) {
	s.V, s.At, s.Until = statementFormat, s.At.UTC().Truncate(time.Second), s.Until.UTC().Truncate(time.Second)
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("cannot encode the statement: %w", err)
	}
	return json.Marshal(s)
}

// ParseStatement parses a stored statement. It does not verify the signatures.
func ParseStatement(value []byte) (s SignedStatement, err error) {
	s.Record, s.Signatures = Split(value)
	if err = checkRecord(s.Record); err == nil {
		err = decodeFormat(s.Record, statementFormat, &s.Statement)
	}
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return SignedStatement{}, fmt.Errorf("cannot read the statement: %w", err)
	}
	return s, nil
}

func (s Statement) check() error {
	switch {
	case s.V != statementFormat:
		return fmt.Errorf("its format is %d, not %d", s.V, statementFormat)
	case s.Environment == "":
		return errors.New("it names no environment")
	case s.Epoch < 1:
		return errors.New("it has no epoch")
	case s.Off != s.Until.IsZero():
		return errors.New("it needs either an end or off")
	}
	return nil
}

// Ended reports whether the end of the statement passed.
func (s Statement) Ended(now time.Time) bool { return !s.Off && !now.Before(s.Until) }

// Target returns the target of a node, with inherited parts.
func (s Statement) Target(role, node string) Target {
	t := Target{Environment: s.Environment}
	for _, p := range []Part{s.Nodes[node], s.Roles[role], s.Default} {
		if t.Tree == "" {
			t.Release, t.Tree = p.Release, p.Tree
		}
		if t.Data == 0 {
			t.Data, t.DataDigest = p.Data, p.DataDigest
		}
	}
	return t
}

// covers reports whether a target is that of a node now, or would be after the rollout in progress.
func (s Statement) covers(role, node string, t Target) bool {
	if s.Target(role, node) == t {
		return true
	}
	if s.Rollout == nil {
		return false
	}
	after, part := s, s.Default
	if s.Rollout.Role != "" {
		part = s.Roles[s.Rollout.Role]
	}
	if s.Rollout.Tree != "" {
		part.Release, part.Tree = s.Rollout.Release, s.Rollout.Tree
	}
	if s.Rollout.Data != 0 {
		part.Data, part.DataDigest = s.Rollout.Data, s.Rollout.DataDigest
	}
	if s.Rollout.Role == "" {
		after.Default = part
	} else if after.Roles = maps.Clone(s.Roles); after.Roles == nil {
		after.Roles = map[string]Part{s.Rollout.Role: part}
	} else {
		after.Roles[s.Rollout.Role] = part
	}
	return after.Target(role, node) == t
}

// Current judges the target of a node by the statement in etcd (nil: none). It returns the mark with the epoch of the
// statement, and a *Refusal if the statement does not cover the target. A node that never verified a statement needs
// none: nothing unsigned can demand one, and nothing unsigned can end the demand. A key that may not sign rollbacks
// raises neither the epoch nor its time, which nothing lowers, and does not end the demand: it only renews.
func (s *Signers) Current(mark HighWaterMark, role, node string, t Target, value []byte, now time.Time) (HighWaterMark, error) {
	mark = mark.in(t.Environment)
	st, refused := s.statement(t.Environment, value, now)
	switch {
	case refused != nil && mark.Statement == 0:
		return mark, nil
	case refused != nil:
		return mark, refused
	}
	no := func(code refusal.Code, pairs ...any) (HighWaterMark, error) {
		return mark, refusal.New(code, append(pairs, "statement", t.Environment)...)
	}
	if st.At.After(now.Add(maxSkew)) {
		return no(refusal.StatementFuture, "at", st.At.Format(time.RFC3339))
	}
	seen, at := mark.Statement, mark.StatementAt
	if !PlausibleEpoch(seen, now) { // of an earlier agent, or of a clock that was ahead
		seen, at = 0, 0
	}
	if st.Epoch < seen {
		return no(refusal.StatementTooOld, "epoch", st.Epoch, "high_water_mark", seen)
	}
	if st.Epoch == seen && st.At.Unix() < at {
		return no(refusal.StatementReplayed, "at", st.At.Format(time.RFC3339), "high_water_mark", time.Unix(at, 0).UTC().Format(time.RFC3339))
	}
	switch refused := s.decides(st, now); {
	case refused == nil:
		mark.Statement, mark.StatementAt = st.Epoch, max(st.At.Unix(), 0)
	case st.Off:
		return mark, refused.Of("statement", t.Environment)
	default:
		mark.Statement = max(mark.Statement, 1)
	}
	switch {
	case st.Off:
		return mark, nil
	case st.Ended(now):
		return no(refusal.StatementExpired, "at", st.Until.Format(time.RFC3339))
	case !st.covers(role, node, t):
		return no(refusal.StatementDiffers, "found", st.Target(role, node), "want", t)
	}
	return mark, nil
}

// statement verifies a stored statement of an environment.
func (s *Signers) statement(environment string, value []byte, now time.Time) (SignedStatement, *Refusal) {
	if len(value) == 0 {
		return SignedStatement{}, refusal.New(refusal.StatementMissing, "statement", environment)
	}
	record, signatures := Split(value)
	_, err := s.Verify(Current, environment, record, signatures, now)
	var refused *Refusal
	if errors.As(err, &refused) {
		return SignedStatement{}, refused.Of("statement", environment)
	}
	st, err := ParseStatement(value)
	switch {
	case err != nil:
		return SignedStatement{}, refusal.New(refusal.RecordUnreadable, "statement", environment, "detail", err)
	case st.Environment != environment:
		return SignedStatement{}, refusal.New(refusal.WrongEnvironment, "statement", environment, "environment", st.Environment, "want", environment)
	case !PlausibleEpoch(st.Epoch, now):
		return SignedStatement{}, refusal.New(refusal.RecordUnreadable, "statement", environment, "detail", fmt.Sprintf("no change can have epoch %d", st.Epoch))
	}
	return st, nil
}

// decides refuses a statement of which no valid signature is by a key that may also sign rollbacks.
func (s *Signers) decides(st SignedStatement, now time.Time) *Refusal {
	_, err := s.verifyAll(st.Environment, st.Record, st.Signatures, now, Current, Rollback)
	var refused *Refusal
	if errors.As(err, &refused) {
		return refused
	}
	return nil
}

// Authentic verifies a statement for its renewal: it may have ended.
func (s *Signers) Authentic(st SignedStatement, environment string, now time.Time) error {
	if _, refused := s.statement(environment, Join(st.Record, st.Signatures), now); refused != nil {
		return refused
	}
	return nil
}

// String formats a target for people.
func (t Target) String() string {
	switch {
	case t.Tree == "" && t.Data == 0:
		return "nothing"
	case t.Data == 0:
		return t.Release
	}
	return fmt.Sprintf("%s with data %d", t.Release, t.Data)
}

package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
)

// Tokens stores the join tokens.
type Tokens struct{ db *etcd.DB }

// TokensIn returns the join tokens of a fleet.
func TokensIn(db *etcd.DB) *Tokens { return &Tokens{db} }

// tokenMark begins every join token, for secret scanners: plt_<id: 8 hex digits>_<secret: 64>.
const tokenMark = "plt_"

// Parts of a token, in bytes before hex encoding.
const (
	tokenIDBytes     = 4
	tokenSecretBytes = 32 // 256 random bits cannot be guessed from a plain hash; a slow hash is not needed
)

// tokenKept is the time that an ended token stays listed.
const tokenKept = 30 * 24 * time.Hour

// Token is a join token as it is stored, without its secret. A node's token has an Environment, and optionally Role or
// Node. An operator's token has Operator and As.
type Token struct {
	ID          string       `json:"id"`                    // 8 hex digits
	Hash        string       `json:"hash"`                  // SHA-256 of the secret, 64 hex digits
	Environment string       `json:"environment,omitempty"` // of nodes; environment or environment@stack
	Role        string       `json:"role,omitempty"`        // this role only; a join without a name gets the lowest free one
	Node        string       `json:"node,omitempty"`        // this node only
	Operator    string       `json:"operator,omitempty"`
	As          OperatorRole `json:"as,omitempty"`
	Uses        int          `json:"uses,omitempty"` // 0: without limit
	Used        int          `json:"used"`
	Created     time.Time    `json:"created"`
	Expires     time.Time    `json:"expires"`
	By          string       `json:"by,omitempty"`
	Why         model.Prose  `json:"why,omitempty"`
	Revoked     *Revoked     `json:"revoked,omitempty"`
}

// Revoked is the author, time and reason of a revocation of a token or an identity.
type Revoked struct {
	At  time.Time   `json:"at"`
	By  string      `json:"by,omitempty"`
	Why model.Prose `json:"why,omitempty"`
}

// Ended reports whether the token admits no join any more.
func (t Token) Ended(now time.Time) bool {
	return t.Revoked != nil || !now.Before(t.Expires) || t.UsedUp()
}

// UsedUp reports whether the token has no uses left.
func (t Token) UsedUp() bool { return t.Uses > 0 && t.Used >= t.Uses }

// Matches reports whether secret is this token's, in constant time.
func (t Token) Matches(secret string) bool {
	return subtle.ConstantTimeCompare([]byte(hashSecret(secret)), []byte(t.Hash)) == 1
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// ParseToken splits the text of a token into its public ID and its secret.
func ParseToken(text string) (id, secret string, err error) {
	rest, marked := strings.CutPrefix(text, tokenMark)
	id, secret, split := strings.Cut(rest, "_")
	if !marked || !split || !cluster.IsHex(id, tokenIDBytes) || !cluster.IsHex(secret, tokenSecretBytes) {
		return "", "", errors.New("cannot read the join token: it does not have the form plt_ID_SECRET\ncopy the complete output of `pulley token create`")
	}
	return id, secret, nil
}

// NewToken gives a token a new ID and secret, and returns its text. No later call returns the text. The token admits
// no join until it is stored.
func NewToken(t Token) (text string, made Token) {
	random := make([]byte, tokenIDBytes+tokenSecretBytes)
	_, _ = rand.Read(random) // it never fails
	secret := hex.EncodeToString(random[tokenIDBytes:])
	t.ID, t.Hash = hex.EncodeToString(random[:tokenIDBytes]), hashSecret(secret)
	return tokenMark + t.ID + "_" + secret, t
}

// Create stores a new token, and returns its text. The caller checks that the environment has such a role or node.
// Create also deletes tokens that ended long before t.Created.
func (s *Tokens) Create(ctx context.Context, t Token) (text string, made Token, err error) {
	text, t = NewToken(t)
	b := etcd.If()
	if err := s.Put(b, t); err != nil {
		return "", Token{}, fmt.Errorf("cannot make a join token: %w", err)
	}
	// First: after the write, an error would hide a token that is valid.
	if err := s.forget(ctx, t.Operator != "", t.Created); err != nil {
		return "", Token{}, err
	}
	if err := s.db.Commit(ctx, b); err != nil {
		return "", Token{}, fmt.Errorf("cannot store a join token: %w", err)
	}
	return text, t, nil
}

// Put adds a new token to a batch. An ID that two tokens share is invalid.
func (s *Tokens) Put(b *etcd.Batch, t Token) error {
	nodes, operators := s.db.Keys.NodeToken(t.ID), s.db.Keys.OperatorToken(t.ID)
	key := nodes
	if t.Operator != "" {
		key = operators
	}
	b.If(etcd.Same(nodes, 0), etcd.Same(operators, 0)).Put(key, t)
	_, err := s.check(key, t)
	return err
}

// DecodeToken reads the token at a key.
func (s *Tokens) DecodeToken(kv *etcd.KV) (*Token, error) {
	var t Token
	err := etcd.Into(&t)(kv)
	if err == nil {
		t.ID, err = s.check(string(kv.Key), t)
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// check returns the ID of the token at a key. Only the key determines its ID and scope: operators may write any value
// below the tokens of nodes, but nothing below those of operators.
func (s *Tokens) check(key string, t Token) (id string, err error) {
	id, ofOperators := strings.CutPrefix(key, s.db.Keys.OperatorTokens())
	if !ofOperators {
		id = strings.TrimPrefix(key, s.db.Keys.NodeTokens())
	}
	problem := ""
	switch {
	case !cluster.IsHex(id, tokenIDBytes):
		problem = "its name is not the ID of a token: it is ignored"
	case ofOperators && (t.Operator == "" || t.As == "" || t.Environment != "" || t.Role != "" || t.Node != ""):
		problem = "it is not a token for an operator: it is ignored"
	case !ofOperators && (t.Environment == "" || t.Operator != "" || t.As != ""):
		problem = "it is not a token for nodes: it is ignored"
	default:
		return id, nil
	}
	return "", &etcd.UnreadableError{Key: key, Problem: problem}
}

// Find reads a token of nodes or of operators. It returns nil if the ID is unknown, or if both kinds have a token of
// this ID.
func (s *Tokens) Find(ctx context.Context, id string) (*Token, error) {
	var found []*etcd.KV
	note := func(kv *etcd.KV) error { found = append(found, kv); return nil }
	_, err := s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: s.db.Keys.NodeToken(id), Read: note}, etcd.Point{Key: s.db.Keys.OperatorToken(id), Read: note})
	switch {
	case err != nil || len(found) == 0:
		return nil, err
	case len(found) == 1:
		return s.DecodeToken(found[0])
	}
	return nil, &etcd.UnreadableError{
		Key: string(found[0].Key), Problem: "a token for an operator has this id too: neither is valid", Next: "revoke it: pulley token revoke " + id,
	}
}

// DeleteEnded deletes all tokens that ended long before now.
func (s *Tokens) DeleteEnded(ctx context.Context, now time.Time) error {
	return errors.Join(s.forget(ctx, false, now), s.forget(ctx, true, now))
}

// forget deletes the tokens of a kind that ended long before now. It needs no guard: an ended token never becomes
// valid again.
func (s *Tokens) forget(ctx context.Context, ofOperators bool, now time.Time) error {
	var ended []string
	_, err := s.each(ctx, ofOperators, func(key string, t Token) {
		if now.Sub(t.Expires) > tokenKept {
			ended = append(ended, key)
		}
	})
	for some := range slices.Chunk(ended, etcd.MaxOps) {
		if err == nil {
			err = s.db.Commit(ctx, etcd.If().Delete(some...))
		}
	}
	return etcd.Wrap(err, "cannot delete join tokens that ended")
}

// List lists the tokens of nodes and of operators, the newest first. damaged names the unreadable ones.
func (s *Tokens) List(ctx context.Context) (all []Token, damaged []string, err error) {
	for _, ofOperators := range []bool{false, true} {
		bad, err := s.each(ctx, ofOperators, func(_ string, t Token) { all = append(all, t) })
		if err != nil {
			return nil, nil, fmt.Errorf("cannot list join tokens: %w", err)
		}
		damaged = append(damaged, bad...)
	}
	slices.SortStableFunc(all, func(a, b Token) int { return b.Created.Compare(a.Created) })
	return all, damaged, nil
}

// each calls do with every token of a kind and its key. damaged names the unreadable ones.
func (s *Tokens) each(ctx context.Context, ofOperators bool, do func(key string, t Token)) (damaged []string, err error) {
	prefix := s.db.Keys.NodeTokens()
	if ofOperators {
		prefix = s.db.Keys.OperatorTokens()
	}
	err = s.db.Scan(ctx, prefix, func(_ string, kv *etcd.KV) error {
		t, err := s.DecodeToken(kv)
		if err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		do(string(kv.Key), *t)
		return nil
	})
	return damaged, err
}

// Revoke ends a token. It returns ErrNotFound for an unknown ID. Nodes and operators that joined with the token stay.
// If one of two tokens with this ID is unreadable, it must not keep the other one valid.
func (s *Tokens) Revoke(ctx context.Context, id string, r Revoked) (t Token, err error) {
	err = etcd.ErrNotFound
	for _, key := range []string{s.db.Keys.NodeToken(id), s.db.Keys.OperatorToken(id)} {
		revoked, failed := s.revokeAt(ctx, key, r)
		switch {
		case failed == nil:
			t, err = *revoked, nil
		case errors.Is(failed, etcd.ErrNotFound):
		case errors.As(failed, new(*etcd.UnreadableError)):
			if t.ID == "" {
				err = failed
			}
		default:
			return Token{}, fmt.Errorf("cannot revoke join token %s: %w", id, failed)
		}
	}
	return t, etcd.Wrap(err, "cannot revoke join token %s", id)
}

func (s *Tokens) revokeAt(ctx context.Context, key string, r Revoked) (t *Token, err error) {
	err = etcd.Retry(ctx, func() error { // after a join with the token
		resp, err := s.db.Get(ctx, key)
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return etcd.ErrNotFound
		}
		if t, err = s.DecodeToken(resp.Kvs[0]); err != nil || t.Revoked != nil {
			return err
		}
		t.Revoked = &r
		_, err = s.db.Replace(ctx, key, t, resp.Kvs[0].ModRevision)
		return err
	})
	return t, err
}

// Of returns the keys of the tokens for an environment's nodes, including ended tokens.
func (s *Tokens) Of(ctx context.Context, env string) (keys []string, err error) {
	_, err = s.each(ctx, false, func(key string, t Token) {
		if t.Environment == env {
			keys = append(keys, key)
		}
	})
	return keys, err
}

package store

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

	"pulley/agent"
	"pulley/internal/store/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
	Why         agent.Prose  `json:"why,omitempty"`
	Revoked     *Revoked     `json:"revoked,omitempty"`
}

// Revoked is the author, time and reason of a revocation of a token or an identity.
type Revoked struct {
	At  time.Time   `json:"at"`
	By  string      `json:"by,omitempty"`
	Why agent.Prose `json:"why,omitempty"`
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
	if !marked || !split || !isHex(id, tokenIDBytes) || !isHex(secret, tokenSecretBytes) {
		return "", "", errors.New("cannot read the join token: it does not have the form plt_ID_SECRET\ncopy all of what `pulley token create` printed")
	}
	return id, secret, nil
}

func isHex(s string, size int) bool {
	return len(s) == hex.EncodedLen(size) && strings.Trim(s, "0123456789abcdef") == ""
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
	ofOperators := t.Operator != ""
	free, put, err := s.puttingToken(t)
	if err != nil {
		return "", Token{}, fmt.Errorf("cannot make a join token: %w", err)
	}
	resp, err := s.db.Txn(ctx, free, []clientv3.Op{put}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("cannot store a join token: %w", err)
	}
	if err := s.forgetTokens(ctx, ofOperators, t.Created); err != nil {
		return "", Token{}, fmt.Errorf("cannot delete join tokens that ended: %w", err)
	}
	return text, t, nil
}

// puttingToken returns the operation that stores a new token, and its guards: an ID that two tokens share is invalid.
func (s *Tokens) puttingToken(t Token) (free []clientv3.Cmp, put clientv3.Op, err error) {
	nodes, operators := s.db.Keys.NodeToken(t.ID), s.db.Keys.OperatorToken(t.ID)
	key := nodes
	if t.Operator != "" {
		key = operators
	}
	value, err := etcd.Encode(t)
	if err == nil {
		_, err = s.decodeToken(key, []byte(value))
	}
	return []clientv3.Cmp{etcd.Same(nodes, 0), etcd.Same(operators, 0)}, clientv3.OpPut(key, value), err
}

// decodeToken reads the token at key. Only the key determines its ID and scope: operators may write any value below
// the tokens of nodes, but nothing below those of operators.
func (s *Tokens) decodeToken(key string, b []byte) (Token, error) {
	var t Token
	if err := etcd.Decode(key, b, &t); err != nil {
		return Token{}, err
	}
	rest, ofOperators := strings.CutPrefix(key, s.db.Keys.OperatorTokens())
	if !ofOperators {
		rest = strings.TrimPrefix(key, s.db.Keys.NodeTokens())
	}
	t.ID = rest
	switch {
	case !isHex(rest, tokenIDBytes):
		return Token{}, &etcd.UnreadableError{Key: key, Problem: "its name is no id of a token: it counts for nobody"}
	case ofOperators && (t.Operator == "" || t.As == "" || t.Environment != "" || t.Role != "" || t.Node != ""):
		return Token{}, &etcd.UnreadableError{Key: key, Problem: "it is not a token for an operator: it counts for nobody"}
	case !ofOperators && (t.Environment == "" || t.Operator != "" || t.As != ""):
		return Token{}, &etcd.UnreadableError{Key: key, Problem: "it is not a token for nodes: it counts for nobody"}
	}
	return t, nil
}

// Find reads a token of nodes or of operators. It returns nil if the ID is unknown, or if both kinds have a token of
// this ID.
func (s *Tokens) Find(ctx context.Context, id string) (*Token, error) {
	keys := []string{s.db.Keys.NodeToken(id), s.db.Keys.OperatorToken(id)}
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpGet(keys[0]), clientv3.OpGet(keys[1])}, nil)
	if err != nil {
		return nil, err
	}
	nodes, operators := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
	found := append(nodes, operators...)
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		t, err := s.decodeToken(string(found[0].Key), found[0].Value)
		if err != nil {
			return nil, err
		}
		return &t, nil
	}
	return nil, &etcd.UnreadableError{Key: keys[0], Problem: "there is a token for an operator with this id: neither counts", Next: "revoke it: pulley token revoke " + id}
}

// DeleteEnded deletes all tokens that ended long before now.
func (s *Tokens) DeleteEnded(ctx context.Context, now time.Time) error {
	if err := errors.Join(s.forgetTokens(ctx, false, now), s.forgetTokens(ctx, true, now)); err != nil {
		return fmt.Errorf("cannot delete join tokens that ended: %w", err)
	}
	return nil
}

// forgetTokens needs no guard: an ended token never becomes valid again.
func (s *Tokens) forgetTokens(ctx context.Context, ofOperators bool, now time.Time) error {
	var ops []clientv3.Op
	_, err := s.eachToken(ctx, ofOperators, func(key string, t Token) {
		if now.Sub(t.Expires) > tokenKept {
			ops = append(ops, clientv3.OpDelete(key))
		}
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(ops, maxOps) {
		if _, err := s.db.Txn(ctx, nil, some, nil); err != nil {
			return err
		}
	}
	return nil
}

// List lists the tokens of nodes and of operators, the newest first. damaged names the unreadable ones.
func (s *Tokens) List(ctx context.Context) (all []Token, damaged []string, err error) {
	for _, ofOperators := range []bool{false, true} {
		bad, err := s.eachToken(ctx, ofOperators, func(_ string, t Token) { all = append(all, t) })
		if err != nil {
			return nil, nil, fmt.Errorf("cannot list join tokens: %w", err)
		}
		damaged = append(damaged, bad...)
	}
	slices.SortStableFunc(all, func(a, b Token) int { return b.Created.Compare(a.Created) })
	return all, damaged, nil
}

// eachToken calls each with every token of a kind and its key.
func (s *Tokens) eachToken(ctx context.Context, ofOperators bool, each func(key string, t Token)) (damaged []string, err error) {
	prefix := s.db.Keys.NodeTokens()
	if ofOperators {
		prefix = s.db.Keys.OperatorTokens()
	}
	_, err = s.db.Scan(ctx, prefix, func(rest string, b []byte) error {
		t, err := s.decodeToken(prefix+rest, b)
		if err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		each(prefix+rest, t)
		return nil
	})
	return damaged, err
}

// Revoke ends a token. It returns ErrNotFound for an unknown ID. Nodes and operators that joined with the token stay.
func (s *Tokens) Revoke(ctx context.Context, id string, r Revoked) (Token, error) {
	for {
		t, err := s.revokeToken(ctx, id, r)
		if err == nil || !errors.Is(err, etcd.ErrConflict) || ctx.Err() != nil { // a join changed it first
			if err != nil {
				err = fmt.Errorf("cannot revoke join token %s: %w", id, err)
			}
			return t, err
		}
	}
}

// revokeToken continues if one of two tokens with this ID is unreadable: it must not keep the other one valid.
func (s *Tokens) revokeToken(ctx context.Context, id string, r Revoked) (t Token, err error) {
	err = etcd.ErrNotFound
	for _, key := range []string{s.db.Keys.NodeToken(id), s.db.Keys.OperatorToken(id)} {
		revoked, failed := s.revokeAt(ctx, key, r)
		var unreadable *etcd.UnreadableError
		switch {
		case failed == nil:
			t, err = revoked, nil
		case errors.Is(failed, etcd.ErrNotFound):
		case errors.As(failed, &unreadable):
			if t.ID == "" {
				err = failed
			}
		default:
			return Token{}, failed
		}
	}
	return t, err
}

func (s *Tokens) revokeAt(ctx context.Context, key string, r Revoked) (Token, error) {
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return Token{}, err
	}
	if len(resp.Kvs) == 0 {
		return Token{}, etcd.ErrNotFound
	}
	t, err := s.decodeToken(key, resp.Kvs[0].Value)
	if err != nil || t.Revoked != nil {
		return t, err
	}
	t.Revoked = &r
	_, err = s.db.Replace(ctx, key, t, resp.Kvs[0].ModRevision)
	return t, err
}

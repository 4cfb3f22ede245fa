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

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tokenMark begins every join token, so that a secret scanner can know one: plt_<id: 8 hex digits>_<secret: 64>.
const tokenMark = "plt_"

// What a token consists of, in bytes before they are hex digits.
const (
	tokenIDBytes     = 4
	tokenSecretBytes = 32 // 256 random bits: a plain hash of them can't be guessed, so no slow one is needed
)

// tokenKept is how long a token that has ended stays to be listed.
const tokenKept = 30 * 24 * time.Hour

// Token is leave to join, as etcd has it: never the secret itself. A node's token has an Environment, and Role or Node or
// neither; an operator's has Operator and As.
type Token struct {
	ID          string       `json:"id"`                    // 8 hex digits
	Hash        string       `json:"hash"`                  // SHA-256 of the secret, 64 hex digits
	Environment string       `json:"environment,omitempty"` // of nodes; environment or environment@stack
	Role        string       `json:"role,omitempty"`        // nodes of this role only; who names none gets the lowest free number
	Node        string       `json:"node,omitempty"`        // this node only
	Operator    string       `json:"operator,omitempty"`
	As          OperatorRole `json:"as,omitempty"`
	Uses        int          `json:"uses,omitempty"` // 0: without limit
	Used        int          `json:"used"`
	Created     time.Time    `json:"created"`
	Expires     time.Time    `json:"expires"`
	By          string       `json:"by,omitempty"`
	Why         string       `json:"why,omitempty"`
	Revoked     *Revoked     `json:"revoked,omitempty"`
}

// Revoked is who took a token or an identity back, and why.
type Revoked struct {
	At  time.Time `json:"at"`
	By  string    `json:"by,omitempty"`
	Why string    `json:"why,omitempty"`
}

// Ended reports whether nobody can join with the token any more.
func (t Token) Ended(now time.Time) bool {
	return t.Revoked != nil || !now.Before(t.Expires) || t.UsedUp()
}

// UsedUp reports whether each use of the token is gone.
func (t Token) UsedUp() bool { return t.Uses > 0 && t.Used >= t.Uses }

// Matches reports whether secret is this token's, in a time that says nothing of how much of it is right.
func (t Token) Matches(secret string) bool {
	return subtle.ConstantTimeCompare([]byte(hashSecret(secret)), []byte(t.Hash)) == 1
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// ParseToken splits the text of a token into its id, which may be shown, and its secret, which may not.
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

// CreateToken stores a new token with an id and a secret of its own, and returns its text: the only time that it is to be
// seen. Whether the environment has such a role or node is for the caller to look at. Tokens that ended long before
// t.Created are deleted at this occasion.
func (s *Store) CreateToken(ctx context.Context, t Token) (text string, made Token, err error) {
	random := make([]byte, tokenIDBytes+tokenSecretBytes)
	if _, err := rand.Read(random); err != nil {
		return "", Token{}, fmt.Errorf("cannot make a join token: %w", err)
	}
	secret := hex.EncodeToString(random[tokenIDBytes:])
	t.ID, t.Hash = hex.EncodeToString(random[:tokenIDBytes]), hashSecret(secret)
	value, err := encode(t)
	if err != nil {
		return "", Token{}, err
	}
	key := s.tokenKey(t)
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, value)}, nil)
	if err == nil && !resp.Succeeded {
		err = ErrConflict
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("cannot store a join token: %w", err)
	}
	if err := s.forgetTokens(ctx, t.Operator != "", t.Created); err != nil {
		return "", Token{}, fmt.Errorf("cannot delete join tokens that ended: %w", err)
	}
	return tokenMark + t.ID + "_" + secret, t, nil
}

func (s *Store) tokenKey(t Token) string {
	if t.Operator != "" {
		return s.keys.operatorToken(t.ID)
	}
	return s.keys.nodeToken(t.ID)
}

// forgetTokens needs no guard: a token that has ended never comes back.
func (s *Store) forgetTokens(ctx context.Context, ofOperators bool, now time.Time) error {
	all, _, err := s.tokens(ctx, ofOperators)
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for _, t := range all {
		if now.Sub(t.Expires) > tokenKept && len(ops) < maxOps {
			ops = append(ops, clientv3.OpDelete(s.tokenKey(t)))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err = s.txn(ctx, nil, ops, nil)
	return err
}

// Tokens lists the tokens of nodes and of operators, the newest first. Those that can't be read are named in damaged.
func (s *Store) Tokens(ctx context.Context) (all []Token, damaged []string, err error) {
	for _, ofOperators := range []bool{false, true} {
		some, bad, err := s.tokens(ctx, ofOperators)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot list join tokens: %w", err)
		}
		all, damaged = append(all, some...), append(damaged, bad...)
	}
	slices.SortStableFunc(all, func(a, b Token) int { return b.Created.Compare(a.Created) })
	return all, damaged, nil
}

func (s *Store) tokens(ctx context.Context, ofOperators bool) ([]Token, []string, error) {
	prefix := s.keys.nodeTokens()
	if ofOperators {
		prefix = s.keys.operatorTokens()
	}
	var all []Token
	var f Fleet
	err := collect(ctx, s, prefix, &f, func(_ string, t Token) { all = append(all, t) })
	return all, f.Damaged, err
}

// RevokeToken ends a token; ErrNotFound when there is none of this id. Who has joined with it stays.
func (s *Store) RevokeToken(ctx context.Context, id string, r Revoked) (Token, error) {
	for {
		t, err := s.revokeToken(ctx, id, r)
		if err == nil || !errors.Is(err, ErrConflict) || ctx.Err() != nil { // lost against a join
			if err != nil {
				err = fmt.Errorf("cannot revoke join token %s: %w", id, err)
			}
			return t, err
		}
	}
}

func (s *Store) revokeToken(ctx context.Context, id string, r Revoked) (Token, error) {
	var t Token
	for _, key := range []string{s.keys.nodeToken(id), s.keys.operatorToken(id)} {
		resp, err := s.get(ctx, key)
		if err != nil {
			return Token{}, err
		}
		if len(resp.Kvs) == 0 {
			continue
		}
		if err := decode(key, resp.Kvs[0].Value, &t); err != nil {
			return Token{}, err
		}
		if t.Revoked != nil {
			return t, nil
		}
		t.Revoked = &r
		value, err := encode(t)
		if err != nil {
			return Token{}, err
		}
		done, err := s.txn(ctx, []clientv3.Cmp{same(key, resp.Kvs[0].ModRevision)}, []clientv3.Op{clientv3.OpPut(key, value)}, nil)
		if err == nil && !done.Succeeded {
			err = ErrConflict
		}
		return t, err
	}
	return Token{}, ErrNotFound
}

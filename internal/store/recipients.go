package store

import (
	"context"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Recipients are the recipients of an environment's or a role's secrets, the newest first. Generations of data that are
// older than a rotation need the older ones.
type Recipients struct {
	Recipients []Recipient `json:"recipients"`
}

// Recipient is what secrets are encrypted to. Its identity decrypts them, and is encrypted to the key of the CA folder.
type Recipient struct {
	Recipient   string    `json:"recipient"`
	Certificate string    `json:"certificate"` // PEM; see pki.IssueRecipient
	Identity    []byte    `json:"identity"`
	At          time.Time `json:"at"`
	By          string    `json:"by"`
}

// RecipientScope names the scope of recipients: a role, or the environment for role "".
func RecipientScope(role string) string {
	if role == "" {
		return "environment"
	}
	return rolePrefix + role
}

const rolePrefix = "role."

// Recipients reads the recipients of a role, or of the environment for role "", and the revision of their last write.
func (s *Identities) Recipients(ctx context.Context, ref environments.Ref, role string) (Recipients, int64, error) {
	r, revision, err := etcd.Single[Recipients](ctx, s.db, s.db.Env(ref).Recipient(RecipientScope(role)))
	if r == nil {
		r = &Recipients{}
	}
	return *r, revision, etcd.Wrap(err, "cannot read the recipients of secrets")
}

// AllRecipients reads the recipients of an environment by role; those of the environment have role "". damaged names the
// unreadable ones.
func (s *Identities) AllRecipients(ctx context.Context, ref environments.Ref) (all map[string]Recipients, damaged []string, err error) {
	scopes, damaged, err := etcd.ReadAll[Recipients](ctx, s.db, s.db.Env(ref).Recipients())
	all = map[string]Recipients{}
	for scope, r := range scopes {
		role, _ := strings.CutPrefix(scope, rolePrefix)
		if scope == RecipientScope("") {
			role = ""
		}
		all[role] = r
	}
	return all, damaged, etcd.Wrap(err, "cannot list the recipients of secrets of %s", ref)
}

// PutRecipients replaces recipients. It returns ErrConflict if they were written since revision.
func (s *Identities) PutRecipients(ctx context.Context, ref environments.Ref, role string, r Recipients, revision int64) error {
	_, err := s.db.Replace(ctx, s.db.Env(ref).Recipient(RecipientScope(role)), r, revision)
	return err
}

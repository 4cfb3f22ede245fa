package targets

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Recipients are the recipients of an environment's or a role's secrets, the newest first. Generations of data that are
// older than a rotation need the older ones.
type Recipients struct {
	Recipients []Recipient `json:"recipients"`

	role     string
	revision int64 // of their last write, which guards the next one
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

// Recipients reads the recipients of a role, or of the environment for role "".
func (s *Targets) Recipients(ctx context.Context, ref model.Ref, role string) (Recipients, error) {
	r, revision, err := etcd.Single[Recipients](ctx, s.db, s.db.Env(ref).Recipient(RecipientScope(role)))
	if r == nil {
		r = &Recipients{}
	}
	r.role, r.revision = role, revision
	return *r, etcd.Wrap(err, "cannot read the recipients of secrets")
}

// AllRecipients reads the recipients of an environment by role; those of the environment have role "". damaged names the
// unreadable ones.
func (s *Targets) AllRecipients(ctx context.Context, ref model.Ref) (all map[string]Recipients, damaged []string, err error) {
	all = map[string]Recipients{}
	damaged, err = etcd.Collect(ctx, s.db, s.db.Env(ref).Recipients(), func(rest string, r Recipients, revision int64) {
		scope := etcd.Unescape(rest)
		role, _ := strings.CutPrefix(scope, rolePrefix)
		if scope == RecipientScope("") {
			role = ""
		}
		r.role, r.revision = role, revision
		all[role] = r
	})
	return all, damaged, etcd.Wrap(err, "cannot list the recipients of secrets of %s", ref)
}

// InUse is the recipients that stored secrets of an environment are encrypted to.
type InUse struct {
	IDs  map[string]bool // of recipients, as ciphertexts name them
	head int64           // revision of the head of the data, which each new generation writes
}

// RecipientsInUse reads the secrets of all stored generations of an environment's data.
func (s *Targets) RecipientsInUse(ctx context.Context, ref model.Ref) (InUse, error) {
	k, used := s.db.Env(ref), InUse{IDs: map[string]bool{}}
	resp, err := s.db.Get(ctx, k.DataHead())
	if err == nil {
		for _, kv := range resp.Kvs {
			used.head = kv.ModRevision
		}
		err = s.db.Scan(ctx, k.Layers(), func(_ string, kv *etcd.KV) error {
			for _, id := range hieradata.SecretIDs(kv.Value) {
				used.IDs[id] = true
			}
			return nil
		}, clientv3.WithLimit(layersAtOnce))
	}
	return used, etcd.Wrap(err, "cannot read which recipients the secrets of %s use", ref)
}

// layersAtOnce bounds a response with layers, of up to 512 KiB each.
const layersAtOnce = 10

// PutRecipients replaces recipients. It returns ErrConflict if they were written since r was read, or if a generation of data was made
// since used was read; nil: r has all recipients that were read.
func (s *Targets) PutRecipients(ctx context.Context, ref model.Ref, role string, r Recipients, used *InUse) error {
	key := s.db.Env(ref).Recipient(RecipientScope(role))
	b := etcd.If(etcd.Same(key, r.revision)).Put(key, r)
	if used != nil {
		b.If(etcd.Same(s.db.Env(ref).DataHead(), used.head))
	}
	return s.db.Commit(ctx, b)
}

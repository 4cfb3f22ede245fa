package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pulley/agent"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// probeLifetime is how long the certificate is good that finds out whom a cluster trusts.
const probeLifetime = 5 * time.Minute

// MayJoin finds out whether nodes can join a cluster that is not ours: serve has to be an administrator there, who is a
// client has to be checked, and the CA has to be trusted, by the cluster's members and for their own certificates. Each
// that is missing is an error of its own. connection is how serve reaches the cluster.
func (c *Certificates) MayJoin(ctx context.Context, st *store.Store, connection store.Config) error {
	on, err := st.AuthEnabled(ctx)
	if err != nil {
		return err
	}
	if !on {
		return errors.New("etcd does not check its users: every certificate would be an administrator's\nturn that on first")
	}
	if _, err := st.Users(ctx); err != nil {
		return fmt.Errorf("serve's own certificate has to be that of a user with etcd's role root: %w", err)
	}
	return c.trustedBy(ctx, connection)
}

// trustedBy connects as somebody whom the CA knows and etcd does not: what says no then is etcd, not TLS.
func (c *Certificates) trustedBy(ctx context.Context, connection store.Config) error {
	dir, err := os.MkdirTemp("", "pulley-probe-") // 0700
	if err != nil {
		return fmt.Errorf("cannot look whom etcd trusts: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "probe.pem")
	nobody := pki.Name{Prefix: c.prefix, Kind: pki.KindServe, Subject: "probe", Incarnation: pki.NewIncarnation()}
	if err := c.issue(file, nobody, probeLifetime); err != nil {
		return err
	}
	connection.CACert, connection.Cert, connection.Key = c.Bundle(), file, file
	st, err := store.Open(connection)
	if err != nil {
		return err
	}
	defer st.Close()
	switch err := st.Ping(ctx); {
	case err == nil:
		return errors.New("etcd lets a certificate read that no user has\nlook at its roles and whether it asks for client certificates")
	case errors.Is(err, agent.ErrUnreachable):
		return fmt.Errorf("etcd does not trust the CA in %s, or has certificates of another one itself: %w\nadd %s to its --trusted-ca-file, and issue its servers' certificates from that CA", c.dir, err, c.Bundle())
	}
	return nil
}

package fleetca

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

// probeLifetime is the lifetime of the certificate that tests which CAs a cluster trusts.
const probeLifetime = 5 * time.Minute

// Obstacle is the code of a reason why nodes cannot join a cluster.
type Obstacle string

// The obstacles.
const (
	AuthOff       Obstacle = "auth_off"
	NotRoot       Obstacle = "not_root"
	AdmitsUnknown Obstacle = "admits_unknown_user"
	CANotTrusted  Obstacle = "ca_not_trusted"
)

// JoinError reports why nodes cannot join a cluster.
type JoinError struct {
	Obstacle Obstacle
	Bundle   string // file of the CA certificates
	Err      error
}

func (e *JoinError) Error() string {
	text := map[Obstacle]string{
		AuthOff:       "etcd does not authenticate its users: every certificate has an administrator's rights",
		NotRoot:       "serve's own certificate is not of a user with etcd's role root",
		AdmitsUnknown: "etcd accepts a certificate that has no user",
		CANotTrusted:  "etcd does not trust the CA in " + filepath.Dir(e.Bundle) + ", or its own certificates are of another CA",
	}[e.Obstacle]
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *JoinError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *JoinError) Hint() string {
	switch e.Obstacle {
	case AuthOff:
		return "enable it: pulley auth setup"
	case NotRoot:
		return "give serve the certificate that `pulley auth setup` made: --cert and --key DIR/pki/serve.pem"
	case AdmitsUnknown:
		return "check etcd's roles, and start etcd with --client-cert-auth"
	}
	return "add " + e.Bundle + " to etcd's --trusted-ca-file, and issue its servers' certificates from that CA: pulley auth certificate"
}

// MayJoin checks whether nodes can join a cluster that serve does not run. Serve must be an administrator there, and
// etcd must authenticate its users and trust the CA. Each obstacle is a *JoinError. connection is serve's own.
func (c *Certificates) MayJoin(ctx context.Context, st *store.Store, connection store.Config) error {
	on, err := st.Access.AuthEnabled(ctx)
	if err != nil {
		return err
	}
	if !on {
		return &JoinError{Obstacle: AuthOff}
	}
	if _, err := st.Access.Users(ctx); err != nil {
		return &JoinError{Obstacle: NotRoot, Err: err}
	}
	return c.trustedBy(ctx, connection)
}

// trustedBy connects with a certificate of the CA that has no user. A refusal then comes from etcd, not from TLS.
func (c *Certificates) trustedBy(ctx context.Context, connection store.Config) error {
	dir, err := os.MkdirTemp("", "pulley-probe-") // 0700
	if err != nil {
		return fmt.Errorf("cannot make a certificate to test etcd's trust: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "probe.pem")
	probe := pki.Name{Prefix: c.prefix, Kind: pki.KindServe, Subject: "probe", Incarnation: pki.NewIncarnation()}
	if err := c.Issue(file, probe, probeLifetime); err != nil {
		return err
	}
	connection.CACert, connection.Cert, connection.Key = c.Bundle(), file, file
	st, err := store.Open(connection)
	if err != nil {
		return err
	}
	defer st.Close()
	switch err := st.Cluster.Ping(ctx); {
	case err == nil:
		return &JoinError{Obstacle: AdmitsUnknown}
	case errors.Is(err, agent.ErrUnreachable):
		return &JoinError{Obstacle: CANotTrusted, Bundle: c.Bundle(), Err: err}
	}
	return nil
}

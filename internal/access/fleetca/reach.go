package fleetca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki"
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
	Outdated      Obstacle = "outdated"
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
		Outdated:      "etcd is too old: its users could read or write beyond their roles",
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
	case Outdated:
		return "upgrade etcd, then run the command again"
	case AdmitsUnknown:
		return "check etcd's roles, and start etcd with --client-cert-auth"
	}
	return "add " + e.Bundle + " to etcd's --trusted-ca-file, and issue its servers' certificates from that CA: pulley auth certificate"
}

// MayJoin checks whether nodes can join a cluster that serve does not run. Serve must be an administrator there, and
// etcd must authenticate its users and trust the CA. Each obstacle is a *JoinError. connection is serve's own.
func (c *Certificates) MayJoin(ctx context.Context, st *etcd.DB, connection etcd.Config) error {
	on, err := access.In(st).AuthEnabled(ctx)
	if err != nil {
		return err
	}
	if !on {
		return &JoinError{Obstacle: AuthOff}
	}
	if _, err := access.In(st).Users(ctx); err != nil {
		return &JoinError{Obstacle: NotRoot, Err: err}
	}
	return c.trustedBy(ctx, connection)
}

// trustedBy connects with a certificate of the CA that has no user. A refusal then comes from etcd, not from TLS.
func (c *Certificates) trustedBy(ctx context.Context, connection etcd.Config) error {
	return c.asNobody(connection, func(st *etcd.DB, _ tls.Certificate) error {
		switch err := cluster.In(st).Ping(ctx); {
		case err == nil:
			return &JoinError{Obstacle: AdmitsUnknown}
		case errors.Is(err, model.ErrUnreachable):
			return c.distrusted(err)
		}
		return nil
	})
}

func (c *Certificates) distrusted(err error) error {
	return &JoinError{Obstacle: CANotTrusted, Bundle: c.Bundle(), Err: err}
}

// asNobody runs do with a connection whose certificate is of the CA and has no user.
func (c *Certificates) asNobody(connection etcd.Config, do func(*etcd.DB, tls.Certificate) error) error {
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
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return err
	}
	connection.CACert, connection.Cert, connection.Key = c.Bundle(), file, file
	st, err := etcd.Open(connection)
	if err != nil {
		return err
	}
	return errors.Join(do(st, pair), st.Close())
}

// MaySetUp checks that authentication can work in a cluster, before SetUpCluster changes anything there: nobody could undo the change
// if etcd does not trust this CA. Members that do not answer are not checked, unless no quorum answers.
func (c *Certificates) MaySetUp(ctx context.Context, connection etcd.Config) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA.Bundle())
	return c.asNobody(connection, func(st *etcd.DB, nobody tls.Certificate) error {
		for _, endpoint := range connection.Endpoints {
			trusts, err := accepts(ctx, endpoint, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{nobody}, NextProtos: []string{"h2"}})
			var other *tls.CertificateVerificationError
			switch {
			case errors.As(err, &other):
				return c.distrusted(fmt.Errorf("at %s: %w", endpoint, err))
			case err == nil && !trusts:
				return c.distrusted(fmt.Errorf("%s refuses its certificates", endpoint))
			}
		}
		health, err := cluster.In(st).Health(ctx)
		if err != nil {
			return err
		}
		for _, m := range health {
			if need, yes := cluster.Outdated(m.Version); yes && m.Silent == nil {
				return &JoinError{Obstacle: Outdated, Err: fmt.Errorf("etcd %s at %s; the first safe version is %s", m.Version, m.Endpoint, need)}
			}
		}
		return nil
	})
}

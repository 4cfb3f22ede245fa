package main

import (
	"context"
	"fmt"
	"path/filepath"
	"pulley/internal/fleetca"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
)

// healthInterval is how often an external cluster is looked at.
const healthInterval = 30 * time.Second

// external watches over a cluster that is there: it says when it stops and starts to answer. With a data folder it also
// lets nodes join.
func (s serveOptions) external(c *cobra.Command) error {
	if s.secure.auth {
		return cli.Usagef("--auth is for the embedded etcd; yours is told by etcdctl, or by `pulley auth setup`")
	}
	certs, err := s.externalCertificates(c.Flags().Changed("data-dir"))
	if err != nil {
		return err
	}
	certDefault, keyDefault := s.connection.Cert, s.connection.Key // as flags have them, not yet as variables do
	if certs != nil {
		certDefault, keyDefault = certs.Server(), certs.Server()
	}
	https, err := s.openHTTPS(certDefault, keyDefault, certs != nil)
	if err != nil {
		return err
	}
	defer https.close()
	return s.withStore(c, func(ctx context.Context, st *store.Store) error {
		health, err := st.Cluster.Health(ctx)
		if err != nil && ctx.Err() != nil {
			return s.endedBySignal()
		}
		if err != nil {
			return err
		}
		s.show(health)
		if certs != nil {
			if err := certs.MayJoin(ctx, st, s.connection.Config()); err != nil {
				return fmt.Errorf("cannot let nodes join: %w\n`pulley doctor` looks at all of it; without --data-dir serve only mirrors and watches", err)
			}
		}
		return s.watchOver(ctx, service{st: st, certs: certs, endpoints: s.connection.Endpoints, https: https, look: s.lookAt(st)})
	})
}

// externalCertificates opens the CA that a cluster was told to trust; nil where joining is not asked for.
func (s serveOptions) externalCertificates(asked bool) (*fleetca.Certificates, error) {
	if !asked {
		return nil, s.secure.none()
	}
	if s.listenHTTPS == "" {
		return nil, cli.Usagef("nodes join over HTTPS: give --listen-https beside --data-dir")
	}
	filled := s.connection
	filled.Fill(s.env)
	certs, err := fleetca.Open(filepath.Join(s.dataDir, fleetca.PKIName), filled.Prefix, hostname(), s.secure.ca(s.env.Now))
	if err != nil {
		return nil, err
	}
	return certs, certs.Refresh(s.hosts(s.listenHTTPS))
}

// lookAt asks the cluster how it is, and says so when that has changed.
func (s serveOptions) lookAt(st *store.Store) func(context.Context) {
	answers := true
	return func(ctx context.Context) {
		health, err := st.Cluster.Health(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && answers:
			cli.Complain(s.env, program, err)
		case err == nil && !answers:
			s.show(health)
		}
		answers = err == nil
	}
}

func (s serveOptions) show(health []store.Health) {
	for _, h := range health {
		fmt.Fprintf(s.env.Stdout, "etcd %s answers at %s: %s stored, %s in use%s\n",
			h.Version, h.Endpoint, cli.Bytes(h.DBBytes), cli.Bytes(h.InUseBytes), alarms(h))
	}
}

// alarms are those that a member has raised, to be put behind what is said of it.
func alarms(h store.Health) string {
	if len(h.Alarms) == 0 {
		return ""
	}
	return ", ALARM: " + strings.Join(h.Alarms, "; ")
}

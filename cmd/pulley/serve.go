package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"

	"pulley/internal/cli"
	"pulley/internal/control"
	"pulley/internal/store"
)

type serveOptions struct {
	*options
	dataDir     string
	listen      string
	quota       int64
	retention   time.Duration
	listenHTTPS string
	httpsCert   string
	httpsKey    string
}

func newServe(o *options) *cobra.Command {
	s := serveOptions{options: o}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "run the etcd of a fleet that has none, or watch over the one it has",
		Long: `serve runs a single etcd member with its data under --data-dir. With --endpoints it uses your cluster instead and
checks that it answers.

Plain text is served on loopback only. For any other address give --cert and --key of this server and, with --cacert, the
CA whose client certificates are let in.

With --listen-https it also mirrors what is published over HTTPS, for nodes that name it in their mirrors: objects of
releases and deltas, by their names, and nothing else that etcd has. Its certificate is read again when the files change.

EXIT STATUS
  0 ended by a signal, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("endpoints") {
				return s.external(c)
			}
			return s.embedded(c.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.dataDir, "data-dir", "pulley-data", "folder of the embedded etcd")
	f.StringVar(&s.listen, "listen", control.DefaultListen, "host:port for clients; port 0 picks a free one and prints it")
	f.Int64Var(&s.quota, "quota", control.DefaultQuota, "how large etcd's data may grow, in bytes: 16 MiB to 8 GiB")
	f.DurationVar(&s.retention, "retention", control.DefaultRetention, "how long etcd keeps old revisions: 1m to 30m")
	f.StringVar(&s.listenHTTPS, "listen-https", "", "host:port to mirror published content at, over HTTPS; port 0 picks a free one and prints it")
	f.StringVar(&s.httpsCert, "https-cert", "", "PEM file of the certificate for --listen-https (default: that of --cert)")
	f.StringVar(&s.httpsKey, "https-key", "", "PEM file of its key (default: that of --key)")
	return cmd
}

func (s serveOptions) embedded(ctx context.Context) error {
	config := control.EtcdConfig{
		Dir: s.dataDir, Listen: s.listen, CACert: s.connection.CACert, Cert: s.connection.Cert, Key: s.connection.Key,
		QuotaBytes: s.quota, Retention: s.retention, Log: zapcore.AddSync(s.env.Stderr),
	}
	if err := config.Limits(); err != nil {
		return cli.Usagef("%v", err)
	}
	if err := s.connection.Check(); err != nil {
		return err
	}
	https, err := s.openHTTPS(config.Cert, config.Key)
	if err != nil {
		return err
	}
	defer https.close()
	etcd, err := control.StartEtcd(ctx, config)
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
		return nil
	}
	if err != nil {
		return err
	}
	defer etcd.Close()
	c := s.connection // filled only here: a client's certificate in a variable is none to serve with
	c.Fill(s.env)
	st := etcd.Store(c.Prefix, c.Timeout)
	s.endHolds(ctx, st)
	https.serve(st)
	defer https.close() // before etcd, which it asks
	stored, inUse := etcd.Size()
	alarm := ""
	if health, err := st.Health(ctx); err == nil && len(health) > 0 {
		alarm = alarms(health[0])
	}
	fmt.Fprintf(s.env.Stdout, "etcd serves at %s, data in %s, quota %s, old revisions kept for %s; %s stored, %s in use%s\n",
		etcd.Endpoint(), s.dataDir, cli.Bytes(s.quota), s.retention, cli.Bytes(stored), cli.Bytes(inUse), alarm)
	fmt.Fprintf(s.env.Stdout, "export PULLEY_ENDPOINTS=%s\n", etcd.Endpoint())
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
		return nil
	case err := <-etcd.Failed():
		return fmt.Errorf("etcd ended by itself: %w", err)
	case err := <-https.ended():
		return err
	}
}

// endHolds makes up for the restart: holds end when they said, not later by the time that they ran before it.
func (s serveOptions) endHolds(ctx context.Context, st *store.Store) {
	ended, err := st.EndHolds(ctx, s.env.Now())
	if ended > 0 {
		fmt.Fprintf(s.env.Stdout, "holds that ended while etcd was down: %d\n", ended)
	}
	if err != nil && ctx.Err() == nil {
		cli.Complain(s.env, program, fmt.Errorf("warning: some holds may last longer than they say: %w", err))
	}
}

// healthInterval is how often an external cluster is looked at.
const healthInterval = 30 * time.Second

// external watches over a cluster that is there: it says when it stops and starts to answer.
func (s serveOptions) external(c *cobra.Command) error {
	https, err := s.openHTTPS(s.connection.Cert, s.connection.Key) // as flags have them, not yet as variables do
	if err != nil {
		return err
	}
	defer https.close()
	return s.withStore(c, func(ctx context.Context, st *store.Store) error {
		health, err := st.Health(ctx)
		if err != nil && ctx.Err() != nil {
			fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
			return nil
		}
		if err != nil {
			return err
		}
		s.show(health)
		https.serve(st)
		defer https.close()
		answers := true
		ticker := time.NewTicker(healthInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
				return nil
			case err := <-https.ended():
				return err
			case <-ticker.C:
			}
			health, err := st.Health(ctx)
			switch {
			case ctx.Err() != nil:
				fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
				return nil
			case err != nil && answers:
				cli.Complain(s.env, program, err)
			case err == nil && !answers:
				s.show(health)
			}
			answers = err == nil
		}
	})
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

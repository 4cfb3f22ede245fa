package main

import (
	"context"
	"fmt"
	"pulley/internal/notify"
	"pulley/internal/serve/member"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines/watch"
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
	secure      secureFlags
	agents      []string
	notify      []string
	watched     []string // files of environments whose machines are made again when they die
	watchCloud  string
	watching    []*environments.Environment // what the files say
	budget      int
	patience    time.Duration
}

func newServe(o *options) *cobra.Command {
	s := serveOptions{options: o}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the fleet's etcd, or watch over an existing one",
		Long: `serve runs a single etcd member with its data under --data-dir. With --endpoints it uses your cluster instead and
checks that it answers.

Plain text is served on loopback only. With --auth, which any other address implies, serve makes a CA of its own in the
data folder, and etcd checks who its clients are: nodes and operators join with tokens, and each has a certificate and may
do what its part is. Users are made before etcd listens. Once a data folder was served so, it always is. The first start
writes the identity of an administrator. With --cert, --key and --cacert instead, certificates are yours, and whoever has
one may do everything.

With --listen-https (with --auth: always) it serves over HTTPS to nodes: joining, programs of the agent, metrics, and a
mirror of what is published: objects of releases and deltas, by their names, and nothing else that etcd has. Its
certificate is read again when the files change.

EXIT STATUS
  0 ended by a signal, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s.secure.given(c.Flags())
			if len(s.notify) == 0 { // on a command line everybody on this machine can read them
				s.notify = strings.Fields(s.env.Getenv("PULLEY_NOTIFY"))
			}
			if err := notify.Check(s.notify); err != nil {
				return cli.Usagef("%v", err)
			}
			var err error
			if s.watching, err = s.readWatched(c); err != nil {
				return err
			}
			switch {
			case c.Flags().Changed("endpoints"):
				return s.external(c)
			case s.checksUsers():
				return s.secured(c.Context())
			}
			return s.embedded(c.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.dataDir, "data-dir", "pulley-data", "folder of the embedded etcd and of the CA")
	f.StringVar(&s.listen, "listen", member.DefaultListen, "host:port for clients; port 0 picks a free one and prints it")
	f.Int64Var(&s.quota, "quota", member.DefaultQuota, "how large etcd's data may grow, in bytes: 16 MiB to 8 GiB")
	f.DurationVar(&s.retention, "retention", member.DefaultRetention, "how long etcd keeps old revisions: 1m to 30m")
	f.StringVar(&s.listenHTTPS, "listen-https", "", "host:port to serve nodes at, over HTTPS; port 0 picks a free one and prints it (default with --auth: port 8443 of --listen's host)")
	f.StringVar(&s.httpsCert, "https-cert", "", "PEM file of the certificate for --listen-https (default: that of --cert)")
	f.StringVar(&s.httpsKey, "https-key", "", "PEM file of its key (default: that of --key)")
	f.StringArrayVar(&s.agents, "agent", nil, "program pulley-agent that first boots may fetch from here by its digest; may be repeated")
	f.StringArrayVar(&s.notify, "notify", nil, "URL that is told of finished and stuck first boots, clones and floods, as shoutrrr has it (slack://…, generic+https://…); may be repeated [PULLEY_NOTIFY, with spaces between]")
	f.StringSliceVar(&s.watched, "watch-machines", nil, "`ENVIRONMENTS` whose machines are made again when they die, as `pulley env watch` does, with commas: files, or names of environments/NAME.yaml, seen from here")
	f.StringVar(&s.watchCloud, "watch-cloud", "", "name of their cloud, whose words are in ../clouds/NAME.yaml, seen from the files")
	f.DurationVar(&s.patience, "watch-patience", watch.DefaultPatience, "how long a machine has to be seen dead until it is made again")
	f.IntVar(&s.budget, "watch-budget", watch.DefaultBudget, "how many machines of an environment are made again in an hour, at most")
	s.secure.add(f)
	return cmd
}

// embeddedConfig is what every kind of embedded member has.
func (s serveOptions) embeddedConfig() (member.EtcdConfig, error) {
	config := member.EtcdConfig{Dir: s.dataDir, Listen: s.listen, QuotaBytes: s.quota, Retention: s.retention, Log: zapcore.AddSync(s.env.Stderr)}
	if err := config.Limits(); err != nil {
		return config, cli.Usagef("%v", err)
	}
	return config, s.connection.Check()
}

func (s serveOptions) embedded(ctx context.Context) error {
	config, err := s.embeddedConfig()
	if err != nil {
		return err
	}
	if err := s.secure.none(); err != nil {
		return err
	}
	config.CACert, config.Cert, config.Key = s.connection.CACert, s.connection.Cert, s.connection.Key
	https, err := s.openHTTPS(config.Cert, config.Key, false)
	if err != nil {
		return err
	}
	defer https.close()
	etcd, err := member.StartEtcd(ctx, config)
	if err != nil && ctx.Err() != nil {
		return s.endedBySignal()
	}
	if err != nil {
		return err
	}
	defer etcd.Close()
	c := s.connection // filled only here: a client's certificate in a variable is none to serve with
	c.Fill(s.env)
	st := etcd.Store(c.Prefix, c.Timeout)
	if on, err := st.Access.AuthEnabled(ctx); err == nil && on {
		return fmt.Errorf("cannot serve %s so: etcd checks its users there\nstart it with --auth, without --cert, --key and --cacert", s.dataDir)
	}
	s.endHolds(ctx, st)
	return s.watchOver(ctx, service{st: st, endpoints: []string{etcd.Endpoint()}, https: https, failed: etcd.Failed(), ready: func() {
		s.tellEtcd(ctx, etcd, st)
		fmt.Fprintf(s.env.Stdout, "export PULLEY_ENDPOINTS=%s\n", etcd.Endpoint())
	}})
}

// tellEtcd says where the embedded member serves, and how full it is.
func (s serveOptions) tellEtcd(ctx context.Context, etcd *member.Etcd, st *store.Store) {
	stored, inUse := etcd.Size()
	alarm := ""
	if health, err := st.Cluster.Health(ctx); err == nil && len(health) > 0 {
		alarm = alarms(health[0])
	}
	fmt.Fprintf(s.env.Stdout, "etcd serves at %s, data in %s, quota %s, old revisions kept for %s; %s stored, %s in use%s\n",
		etcd.Endpoint(), s.dataDir, cli.Bytes(s.quota), s.retention, cli.Bytes(stored), cli.Bytes(inUse), alarm)
}

func (s serveOptions) endedBySignal() error {
	fmt.Fprintln(s.env.Stdout, "ends: asked to by a signal")
	return nil
}

// endHolds makes up for the restart: holds end when they said, not later by the time that they ran before it.
func (s serveOptions) endHolds(ctx context.Context, st *store.Store) {
	ended, err := st.Fleet.EndHolds(ctx, s.env.Now())
	if ended > 0 {
		fmt.Fprintf(s.env.Stdout, "holds that ended while etcd was down: %d\n", ended)
	}
	if err != nil && ctx.Err() == nil {
		cli.Complain(s.env, program, fmt.Errorf("warning: some holds may last longer than they say: %w", err))
	}
}

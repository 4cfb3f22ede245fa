package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/environments"
	"pulley/internal/access/contexts"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd/cluster"
	"pulley/internal/machines/watch"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/serve"
	"pulley/internal/serve/member"
)

type serveOptions struct {
	*options
	config     serve.Config
	notifyFile string
	log        cli.LogFlags
	secure     secureFlags
	watched    []string // files of environments whose dead machines serve replaces
	watchCloud string
	watching   []*environments.Environment // the contents of the files
	budget     int
	patience   time.Duration
}

func newServe(o *options) *cobra.Command {
	s := serveOptions{options: o}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the etcd of a fleet, or serve beside its cluster",
		Long: `Run a single etcd member with its data under --data-dir. With --endpoints or PULLEY_ENDPOINTS, use your own cluster instead.
PULLEY_ENDPOINTS does not count if --data-dir contains an etcd, or with --auth, --listen, --quota or --retention.

serve listens in plain text on loopback only. With --auth, which any other address implies, serve makes a CA in the data
folder, and etcd authenticates its users: nodes and operators join with tokens, and each gets a certificate with the rights of
its role. serve makes the users before etcd listens, and never serves such a data folder without authentication again. The
first start writes the identity of an administrator. With --cert, --key and --cacert instead, the certificates are your own,
and every client with a certificate has all rights.

With --listen-https (always with --auth) serve offers nodes over HTTPS: joins, programs of the agent, metrics, and a mirror of
published objects. The mirror offers nothing else of etcd. serve reads its certificate again when the files change.

With --log-file or --log-format json, the log also contains the warnings and errors that serve otherwise prints. Standard output stays
as it is. An error that ends serve is on standard error as well.

EXIT STATUS
  0 stopped by a signal, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c) },
	}
	f, m := cmd.Flags(), &s.config.Member
	o.addDataDir(cmd, &s.config.DataDir, "folder of the embedded etcd and of the CA")
	f.StringVar(&m.Listen, "listen", member.DefaultListen, "host:port for clients; port 0 picks a free one and prints it")
	cli.SizeVar(f, &m.QuotaBytes, "quota", member.DefaultQuota, "limit of etcd's data: 16MiB to 8GiB")
	cli.DurationVar(f, &m.Retention, "retention", member.DefaultRetention, "how long etcd keeps old revisions: 1m to 30m")
	f.StringVar(&s.config.ListenHTTPS, "listen-https", "", "host:port for nodes, over HTTPS; port 0 picks a free one and prints it (default with --auth: port 8443 of --listen's host)")
	f.StringVar(&s.config.HTTPSCert, "https-cert", "", "PEM file of the certificate for --listen-https (default: --cert)")
	f.StringVar(&s.config.HTTPSKey, "https-key", "", "PEM file of its key (default: --key)")
	f.StringArrayVar(&s.config.Agents, "agent", nil, "program pulley-agent that first boots may fetch by its digest; may be repeated")
	f.StringArrayVar(&s.config.Notify, "notify", nil, "URL for notices, in the form of shoutrrr (slack://…, generic+https://…); may be repeated [PULLEY_NOTIFY, separated by spaces]")
	f.StringVar(&s.notifyFile, "notify-file", "", "file with such URLs, one a line, that only its owner can read")
	f.StringVar(&s.config.Gates, "gates", "", "file that defines the gates of rollouts: commands, HTTP checks and Prometheus queries")
	f.StringVar(&s.config.Puppet, "puppet-credentials", "", "folder with cert.pem, key.pem and ca.pem, with which serve works at the CA of Puppet servers")
	f.StringSliceVar(&s.watched, "watch-machines", nil, "`ENVIRONMENTS` whose dead machines are replaced, as by `pulley env watch`, separated by commas: files, or names of environments/NAME.yaml")
	f.StringVar(&s.watchCloud, "watch-cloud", "", "name of their cloud, described in ../clouds/NAME.yaml beside the files")
	cli.DurationVar(f, &s.patience, "watch-patience", watch.DefaultPatience, "how long a machine must be dead before it is replaced")
	f.IntVar(&s.budget, "watch-budget", watch.DefaultBudget, "limit of replaced machines of an environment in an hour")
	f.BoolVar(&s.config.Auth, "auth", false, "make etcd authenticate its users, with a CA in the data folder; implied by --listen off loopback without --cert, and by a folder that was served with --auth before")
	f.StringArrayVar(&s.config.Advertise, "advertise", nil, "name or address of this machine for nodes; may be repeated (default: that of --listen, or all of the machine)")
	f.StringVar(&s.config.Today, "today", "", "today's `DATE`, as in 2026-11-22: confirms this machine's clock where it contradicts the newest times in etcd")
	cli.DurationVar(f, &s.config.NodeLifetime, "node-lifetime", 90*24*time.Hour, "lifetime of a node's certificate")
	s.secure.addCA(f)
	s.log.AddFlags(f)
	return cmd
}

func (s *serveOptions) run(c *cobra.Command) error {
	if err := s.configure(c); err != nil {
		return err
	}
	var err error
	if s.watching, err = s.readWatched(); err != nil {
		return err
	}
	if err := serve.Run(c.Context(), s.config); err != nil {
		if errors.Is(err, model.ErrUnreachable) {
			err = fmt.Errorf("%w%s", err, s.unset(c))
		}
		return err
	}
	if s.env.Log != nil {
		s.env.Log.Info("serve stops: signal received")
	}
	fmt.Fprintln(s.env.Stdout, "stopping: signal received")
	return nil
}

// configure completes the configuration from flags and variables, and checks it.
func (s *serveOptions) configure(c *cobra.Command) error {
	var err error
	if s.config.Log, err = s.log.Open(&s.env); err != nil {
		return err
	}
	if len(s.config.Notify) == 0 { // not a flag: every user of this machine can read command lines
		s.config.Notify = strings.Fields(s.env.Getenv("PULLEY_NOTIFY"))
	}
	if s.notifyFile != "" {
		urls, err := readSecrets(s.notifyFile)
		if err != nil {
			return err
		}
		s.config.Notify = append(s.config.Notify, urls...)
	}
	for _, name := range []string{"advertise", "ca-sign", "node-lifetime"} {
		if c.Flags().Changed(name) {
			s.config.CAFlags = append(s.config.CAFlags, "--"+name)
		}
	}
	m := &s.config.Member // before variables are read: an operator's certificate must not become the server's
	m.CACert, m.Cert, m.Key = s.connection.CACert, s.connection.Cert, s.connection.Key
	m.Dir, m.Log = s.config.DataDir, s.config.Log.Handler()
	s.connection.Fill(s.env)
	if err := s.connection.Check(); err != nil {
		return err
	}
	s.config.Client = s.connection.Config()
	s.config.Cluster, s.config.Joins = s.usesCluster(c), c.Flags().Changed("data-dir")
	s.config.CA, s.config.Hostname, s.config.Version, s.config.Now = s.secure.ca(s.env.Now), hostname(), s.env.Version, s.env.Now
	s.config.Ready, s.config.Members, s.config.Watch = s.printReady, s.printMembers, s.watchMachines
	s.config.Warn = func(err error) { cli.Complain(s.env, program, err) }
	if err := s.config.Check(); err != nil {
		return cli.Usagef("%v%s", err, s.unset(c))
	}
	return nil
}

// addDataDir adds the flag --data-dir.
func (o *options) addDataDir(c *cobra.Command, dir *string, usage string) {
	c.Flags().StringVar(dir, "data-dir", "", usage+" [PULLEY_DATA_DIR] (default /var/lib/pulley-server; for other users than root ~/.local/share/pulley/server)")
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		if *dir == "" {
			*dir, err = o.usualDataDir()
		}
		return err
	}
}

// relativeDataDir is the data folder of earlier versions, in the folder where serve was started.
const relativeDataDir = "pulley-data"

// usualDataDir returns the data folder where no flag names one. It does not depend on the current folder, unless there is a fleet in
// it already: serve would start an empty one elsewhere.
func (o *options) usualDataDir() (string, error) {
	if dir := o.env.Getenv("PULLEY_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if member.HasData(relativeDataDir) {
		return relativeDataDir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/pulley-server", nil
	}
	if dir := o.env.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pulley", "server"), nil
	}
	home := o.env.Getenv("HOME")
	if home == "" {
		return "", cli.Usagef("cannot choose a data folder: HOME is not set\ngive --data-dir")
	}
	return filepath.Join(home, ".local", "share", "pulley", "server"), nil
}

// unset is the remedy where the cluster of PULLEY_ENDPOINTS is not the wanted one.
func (s *serveOptions) unset(c *cobra.Command) string {
	if !s.config.Cluster || c.Flags().Changed("endpoints") {
		return ""
	}
	return "\nunset PULLEY_ENDPOINTS to run an etcd in " + s.config.DataDir
}

// usesCluster reports whether serve uses a cluster and runs no etcd. Without --endpoints, PULLEY_ENDPOINTS names the cluster:
// otherwise serve would start an empty etcd beside it. A flag or the data folder may show that an etcd runs here.
func (s *serveOptions) usesCluster(c *cobra.Command) bool {
	if c.Flags().Changed("endpoints") || len(s.connection.Endpoints) == 0 {
		return c.Flags().Changed("endpoints")
	}
	if !member.HasData(s.config.DataDir) && !slices.ContainsFunc([]string{"auth", "listen", "quota", "retention"}, c.Flags().Changed) {
		return true
	}
	cli.Complain(s.env, program, fmt.Errorf("note: serve runs the etcd in %s, and does not use PULLEY_ENDPOINTS", s.config.DataDir))
	return false
}

// readSecrets reads a file with one secret a line. Blank lines and lines that begin with # are skipped.
func readSecrets(file string) (lines []string, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the URLs for notices: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("cannot use %s: other users can read its secrets\nrun `chmod 600 %s`", file, file)
	}
	b, err := bounded.ReadFile(file, 64<<10)
	if err != nil {
		return nil, fmt.Errorf("cannot read the URLs for notices: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

func (s *serveOptions) printReady(r serve.Ready) {
	w := s.env.Stdout
	if s.env.Log != nil {
		s.env.Log.Info("serve started", "version", s.env.Version, "endpoints", r.Endpoints, "https", r.HTTPS, "joins", r.Joins)
	}
	if r.EndedHolds > 0 {
		fmt.Fprintf(w, "holds that ended while etcd was down: %d\n", r.EndedHolds)
	}
	s.printMembers(r.Members)
	if r.HTTPS != "" {
		what, until := "mirror of published content serves", ""
		if r.Joins {
			what = "joins and the mirror of published content serve"
		}
		if r.Certificate != "" {
			until = fmt.Sprintf(" with the certificate of %s, valid until %s", quoted(r.Certificate), r.Until.UTC().Format(time.DateOnly))
		}
		fmt.Fprintf(w, "%s at https://%s%s\n", what, r.HTTPS, until)
	}
	for path, digest := range r.Agents {
		fmt.Fprintf(w, "agent %s serves as /agent/%s\n", path, digest)
	}
	if r.Etcd == nil {
		return
	}
	stored, inUse := r.Etcd.Size()
	alarm := ""
	if r.Health != nil {
		alarm = alarms(*r.Health)
	}
	fmt.Fprintf(w, "etcd serves at %s, data in %s, quota %s, old revisions kept for %s; %s stored, %s in use%s\n",
		r.Etcd.Endpoint(), s.config.DataDir, cli.Bytes(s.config.Member.QuotaBytes), s.config.Member.Retention, cli.Bytes(stored), cli.Bytes(inUse), alarm)
	if r.Authenticates {
		s.printIdentity(r)
	}
	fmt.Fprintf(w, "export PULLEY_ENDPOINTS=%s\n", strings.Join(r.Endpoints, ","))
	if r.NewAdmin != "" {
		s.writeContext(contexts.Context{Endpoints: r.Endpoints, Prefix: s.connection.Prefix, Servers: r.Servers}, r.Certificates, r.NewAdmin)
	}
}

// printIdentity prints how the first administrator connects to etcd.
func (s *serveOptions) printIdentity(r serve.Ready) {
	w := s.env.Stdout
	if r.NewAdmin != "" {
		fmt.Fprintf(w, "the identity of administrator \"admin\" was made: %s; keep it: it is made only once\n", r.NewAdmin)
	}
	fmt.Fprintf(w, "etcd authenticates its users; the CA's fingerprints are %s\n", strings.Join(r.Certificates.CA.Fingerprints(), " and "))
	lines := [][2]string{{"CACERT", r.Certificates.Bundle()}}
	if admin := r.Certificates.Admin(); admin != "" {
		lines = append(lines, [2]string{"CERT", admin}, [2]string{"KEY", admin})
	}
	for _, l := range lines {
		path, err := filepath.Abs(l[1])
		if err != nil {
			path = l[1]
		}
		fmt.Fprintf(w, "export PULLEY_%s=%s\n", l[0], path)
	}
}

func (s *serveOptions) printMembers(all []cluster.MemberState) {
	for _, h := range all {
		if h.Silent != nil {
			if s.env.Log != nil {
				s.env.Log.Warn("etcd does not answer", "endpoint", h.Endpoint, "error", h.Silent)
			}
			fmt.Fprintf(s.env.Stdout, "etcd does not answer at %s: %v\n", h.Endpoint, h.Silent)
			continue
		}
		fmt.Fprintf(s.env.Stdout, "etcd %s answers at %s: %s stored, %s in use%s\n",
			h.Version, h.Endpoint, cli.Bytes(h.Stored), cli.Bytes(h.Used), alarms(h))
	}
}

func alarms(h cluster.MemberState) string {
	if len(h.Alarms) == 0 {
		return ""
	}
	return ", ALARM: " + strings.Join(h.Alarms, "; ")
}

// secureFlags are the flags for a CA key outside the data folder.
type secureFlags struct{ caSign string }

func (f *secureFlags) addCA(flags *pflag.FlagSet) {
	flags.StringVar(&f.caSign, "ca-sign", "", "command that signs with the CA's key: digest on standard input, signature on standard output")
}

func (f *secureFlags) ca(now func() time.Time) pki.Options {
	o := pki.Options{Now: now}
	if f.caSign != "" {
		o.SignCommand = []string{"/bin/sh", "-c", f.caSign}
	}
	return o
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

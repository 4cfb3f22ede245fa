package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access/contexts"
	"pulley/internal/access/fleetca"
	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/etcd"
)

// memberLifetime is the lifetime of a member's certificate. It is not renewed automatically. `pulley doctor` reports
// its end.
const memberLifetime = 365 * 24 * time.Hour

// authCommand sets up the users of an etcd.
type authCommand struct{ *options }

func newAuth(o *options) *cobra.Command {
	return group("auth", "Set up authentication in your own etcd cluster", `Prepare an etcd cluster of your own for joins. certificate makes the members' server certificates from the CA that nodes
trust. setup makes roles and users, and enables etcd's authentication. pulley serve --auth does all of this for its embedded
etcd.`, newAuthCertificate(o), newAuthSetup(o))
}

// authFlags select the CA.
type authFlags struct {
	dataDir string
	secure  secureFlags
}

func (f *authFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "folder of pulley serve, whose pki/ contains the CA; made if missing")
	f.secure.addCA(c.Flags())
}

// open opens the CA and creates its missing parts.
func (f *authFlags) open(o *options) (*fleetca.Certificates, error) {
	if f.dataDir == "" {
		return nil, cli.Usagef("missing --data-dir DIR\ngive the data folder of `pulley serve`")
	}
	o.connection.Fill(o.env)
	if o.dryRun { // which creates no CA
		if _, err := fleetca.OpenExisting(f.dataDir, f.secure.ca(o.env.Now)); err != nil {
			return nil, err
		}
		return fleetca.Open(f.dataDir, o.connection.Prefix, hostname(), false, f.secure.ca(o.env.Now))
	}
	certs, err := fleetca.Open(f.dataDir, o.connection.Prefix, hostname(), false, f.secure.ca(o.env.Now))
	if err != nil {
		return nil, err
	}
	return certs, certs.Refresh([]string{hostname()})
}

func newAuthCertificate(o *options) *cobra.Command {
	var flags authFlags
	var hosts []string
	cmd := &cobra.Command{
		Use: "certificate FILE --data-dir DIR --host HOST", Short: "Create a server certificate for a member of etcd", Args: arguments(1, 1, "takes the file to write"),
		Long: `Write a key and a server certificate into one PEM file (0600), for etcd's --cert-file and --key-file. The certificate is
valid for a year. etcd reads the file for each connection, so that a new one needs no restart.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(hosts) == 0 {
				return cli.Usagef("missing --host\ngive --host for each name and address of the member")
			}
			file, err := atomicfile.Follow(args[0])
			if err != nil {
				return fmt.Errorf("cannot make a server certificate: %w", err)
			}
			certs, err := flags.open(o)
			if err != nil {
				return err
			}
			pair, key, err := certs.CA.IssueServer(hosts, memberLifetime)
			if err == nil {
				err = atomicfile.WriteShared(file, append(key, pair...), 0o600)
			}
			if err != nil {
				return fmt.Errorf("cannot make a server certificate: %w", err)
			}
			fmt.Fprintf(o.env.Stdout, "%s contains a key and a certificate; etcd must trust %s\n", args[0], certs.Bundle())
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "name or address of the member for its clients; may be repeated")
	return cmd
}

func newAuthSetup(o *options) *cobra.Command {
	var flags authFlags
	cmd := &cobra.Command{
		Use: "setup --data-dir DIR", Short: "Create etcd's roles and users, and enable authentication", Args: arguments(0, 0, "takes no arguments"),
		Long: `Make the identities of an administrator and of pulley serve in DIR/pki (admin.pem, serve.pem), their roles and users in
etcd, and the roles of every environment. Then enable etcd's authentication. The command may be repeated. If authentication
is enabled already, give --cert and --key of a user with etcd's role root. The command changes nothing in an etcd that is too
old, or that trusts another CA.`,
		RunE: func(c *cobra.Command, _ []string) error {
			certs, err := flags.open(o)
			if err != nil {
				return err
			}
			if err := (authCommand{o}).secureConnection(certs); err != nil {
				return err
			}
			if err := certs.MaySetUp(c.Context(), o.connection.Config()); err != nil {
				return fmt.Errorf("cannot set up etcd's users: nothing was changed: %w", err)
			}
			if o.dryRun {
				return (authCommand{o}).previewSetUp(c.Context(), certs)
			}
			if err := certs.MakeIdentities(); err != nil {
				return err
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if err := certs.SetUpCluster(ctx, s, o.env.User); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "etcd authenticates its users now. Your identity as administrator:\n\nexport PULLEY_CACERT=%s\nexport PULLEY_CERT=%s\nexport PULLEY_KEY=%s\n\nServe with --cert %s --key %s --data-dir %s\n",
					certs.Bundle(), certs.Admin(), certs.Admin(), certs.Identity(), certs.Identity(), flags.dataDir)
				o.writeContext(contexts.Context{Endpoints: o.connection.Endpoints, Prefix: o.connection.Prefix}, certs, certs.Admin())
				return nil
			})
		},
	}
	flags.add(cmd)
	o.addDryRun(cmd)
	return cmd
}

// previewSetUp prints what setup would add to etcd.
func (o authCommand) previewSetUp(ctx context.Context, certs *fleetca.Certificates) error {
	m, err := certs.Missing(ctx, o.connection.Config())
	if err != nil {
		return err
	}
	o.announceDryRun()
	for _, user := range m.Users {
		fmt.Fprintf(o.env.Stdout, "would create etcd's user %s\n", cli.Clean(user))
	}
	for _, role := range m.Roles {
		fmt.Fprintf(o.env.Stdout, "would create etcd's role %s\n", cli.Clean(role))
	}
	if m.AuthOff {
		fmt.Fprintln(o.env.Stdout, "would enable etcd's authentication")
	} else if len(m.Users)+len(m.Roles) == 0 {
		fmt.Fprintln(o.env.Stdout, "etcd has its users and roles, and authenticates its users")
	}
	return nil
}

// secureConnection connects with serve's identity unless flags name another one. It accepts only TLS, because the
// certificate's name is the etcd user.
func (o authCommand) secureConnection(certs *fleetca.Certificates) error {
	for _, e := range o.connection.Config().Endpoints {
		if u, err := url.Parse(e); err != nil || u.Scheme != "https" {
			return cli.Usagef("cannot use endpoint %s: it is not an https URL\netcd knows its users by their certificates", e)
		}
	}
	if o.connection.CACert == "" {
		o.connection.CACert = certs.Bundle()
	}
	if o.connection.Cert == "" && o.connection.Key == "" {
		o.connection.Cert, o.connection.Key = certs.Identity(), certs.Identity()
	}
	return nil
}

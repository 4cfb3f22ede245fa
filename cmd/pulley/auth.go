package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/serve"
	"pulley/internal/store"
)

// Lifetimes of what `pulley auth` issues. Nothing renews a member's certificate by itself: doctor says when it ends.
const (
	memberLifetime   = 365 * 24 * time.Hour
	identityLifetime = 365 * 24 * time.Hour // setup makes one anew, of the same name, when it is run again and a third is left
)

func newAuth(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "auth", Short: "have an etcd cluster of your own check who its users are", Args: arguments(0, 0, "takes the verb certificate or setup"),
		Long: `With its own embedded etcd, pulley serve --auth does all of this by itself. For a cluster of yours: certificate makes the
members' server certificates, from the CA that nodes will trust; setup makes roles and users, and turns on etcd's auth.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newAuthCertificate(o), newAuthSetup(o))
	return cmd
}

// authFlags say where the CA is.
type authFlags struct {
	dataDir string
	secure  secureFlags
}

func (f *authFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "folder of pulley serve, whose pki/ has the CA; made when missing")
	c.Flags().StringVar(&f.secure.caKey, "ca-key", "", "PEM file with the CA's key, where it is kept outside of the data folder")
	c.Flags().StringVar(&f.secure.caSign, "ca-sign", "", "command that signs with the CA's key: digest on standard input, signature on standard output")
}

// open makes what is missing of the CA.
func (f *authFlags) open(o *options) (*serve.Certificates, error) {
	if f.dataDir == "" {
		return nil, cli.Usagef("where is the CA to be? give --data-dir DIR, the folder that `pulley serve` will be given too")
	}
	o.connection.Fill(o.env)
	certs, err := serve.OpenCertificates(filepath.Join(f.dataDir, serve.PKIName), o.connection.Prefix, hostname(), f.secure.ca(o.env.Now))
	if err != nil {
		return nil, err
	}
	return certs, certs.Refresh([]string{hostname()})
}

func newAuthCertificate(o *options) *cobra.Command {
	var flags authFlags
	var hosts []string
	cmd := &cobra.Command{
		Use: "certificate FILE --data-dir DIR --host HOST", Short: "make a server certificate for a member of etcd", Args: arguments(1, 1, "takes the file to write"),
		Long: `certificate writes a key and a server certificate into one PEM file (0600), for etcd's --cert-file and --key-file alike.
It is good for a year; etcd reads the file anew for each connection, so writing a new one needs no restart.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(hosts) == 0 {
				return cli.Usagef("how do clients reach that member? give --host for each of its names and addresses")
			}
			certs, err := flags.open(o)
			if err != nil {
				return err
			}
			pair, key, err := certs.CA.IssueServer(hosts, memberLifetime)
			if err == nil {
				err = atomicfile.Write(args[0], append(key, pair...), 0o600)
			}
			if err != nil {
				return fmt.Errorf("cannot make a server certificate: %w", err)
			}
			fmt.Fprintf(o.env.Stdout, "%s has a key and a certificate; etcd is to trust %s\n", args[0], certs.Bundle())
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "name or address of the member, as clients have it; may be repeated")
	return cmd
}

func newAuthSetup(o *options) *cobra.Command {
	var flags authFlags
	cmd := &cobra.Command{
		Use: "setup --data-dir DIR", Short: "make etcd's roles and users, and turn on its auth", Args: arguments(0, 0, "takes no arguments"),
		Long: `setup makes the identities of an administrator and of pulley serve in DIR/pki (admin.pem, serve.pem), the roles and users in
etcd that they are, and the roles of every environment; then it turns on etcd's auth. It may be repeated. Where auth is on
already, give --cert and --key of a user that has etcd's role root.`,
		RunE: func(c *cobra.Command, _ []string) error {
			certs, err := flags.open(o)
			if err != nil {
				return err
			}
			own, err := o.ownIdentities(certs.CA, filepath.Join(flags.dataDir, serve.PKIName))
			if err != nil {
				return err
			}
			if err := o.secureConnection(certs.Bundle(), own.serveFile); err != nil {
				return err
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				if err := o.setUpAuth(ctx, s, own); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "etcd checks its users now. You are an administrator with\n\nexport PULLEY_CACERT=%s\nexport PULLEY_CERT=%s\nexport PULLEY_KEY=%s\n\nServe with --cert %s --key %s --data-dir %s\n",
					certs.Bundle(), own.adminFile, own.adminFile, own.serveFile, own.serveFile, flags.dataDir)
				return nil
			})
		},
	}
	flags.add(cmd)
	return cmd
}

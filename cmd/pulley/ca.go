package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/serve"
	"pulley/internal/store"
)

func newCA(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ca", Short: "show, rotate and retire the CA of a fleet", Args: arguments(0, 0, "takes a verb: show, rotate or retire"),
		Long: `ca works on the CA in the data folder of pulley serve, on the machine on which that runs; a serve that runs meanwhile
notices. There are two CAs from the first day: the current one signs, and the next one is trusted already by everybody, so
that a rotation needs no moment at which somebody is not trusted. After it the previous one stays trusted until it is
retired.

Who has which certificate is asked of etcd; unless told otherwise, by the identity and with the CA in the same folder.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley ca show --data-dir pulley-data
  pulley ca rotate --data-dir pulley-data
  pulley ca retire --data-dir pulley-data`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newCAShow(o), newCARotate(o), newCARetire(o))
	return cmd
}

// caFolder is the CA that a verb works on.
type caFolder struct {
	*options
	dataDir string
	secure  secureFlags
}

func (f *caFolder) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "pulley-data", "data folder of pulley serve")
	c.Flags().StringVar(&f.secure.caKey, "ca-key", "", "PEM file with the CA's keys, where they are kept outside of the data folder")
	c.Flags().StringVar(&f.secure.caSign, "ca-sign", "", "command that signs with the CA's key")
}

func (f *caFolder) path(name string) string { return filepath.Join(f.dataDir, serve.PKIName, name) }

// open opens the CA, and makes none.
func (f *caFolder) open() (*pki.CA, error) {
	if f.secure.caKey != "" && f.secure.caSign != "" {
		return nil, cli.Usagef("--ca-key and --ca-sign exclude each other")
	}
	if _, err := os.Stat(f.path("ca.pem")); err != nil {
		return nil, fmt.Errorf("cannot open the CA of %s: %w\n`pulley serve --auth` makes it; --data-dir says where that has its data", f.dataDir, err)
	}
	return pki.OpenCA(filepath.Join(f.dataDir, serve.PKIName), f.secure.ca(f.env.Now))
}

// storeConfig is how to reach the etcd of this CA's fleet: where neither flags nor variables say it, by what is in the folder.
func (f *caFolder) storeConfig() (store.Config, error) {
	conn := f.connection
	conn.Fill(f.env)
	if err := conn.Check(); err != nil {
		return store.Config{}, err
	}
	if conn.CACert == "" && conn.Cert == "" && conn.Key == "" {
		conn.CACert = f.path("bundle.pem")
		for _, name := range []string{"admin.pem", "serve.pem"} {
			if _, err := os.Stat(f.path(name)); err == nil {
				conn.Cert, conn.Key = f.path(name), f.path(name)
				break
			}
		}
		if len(conn.Endpoints) == 0 {
			conn.Endpoints = []string{"https://" + serve.DefaultListen}
		}
	}
	return conn.Config(), nil
}

// census asks etcd who has a certificate of which CA; what can't be asked is in its problem.
func (f *caFolder) census(ctx context.Context, ca *pki.CA) (census, error) {
	config, err := f.storeConfig()
	if err != nil {
		return census{}, err
	}
	s, err := store.Open(config)
	if err != nil {
		return census{problem: err}, nil
	}
	n, err := count(ctx, s, ca, f.path("admin.pem"), f.env.Now())
	if err = errors.Join(err, s.Close()); err != nil {
		return census{problem: err}, nil
	}
	n.distrusting, n.problem = distrusting(ctx, config, ca)
	return n, nil
}

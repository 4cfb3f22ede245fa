package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/trust"
	"pulley/userdata"
)

func newUserdata(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var u userdata.Options
	var files keyFiles
	cmd := &cobra.Command{
		Use:   "userdata NODE -e ENVIRONMENT",
		Short: "print the small script that turns a bare machine into a node",
		Long: `userdata prints what cloud-init runs on the machine's first boot: it writes the agent's settings, puts the agent in
place, and starts ` + "`pulley-agent bootstrap`" + `. It asks etcd for nothing.

With --allowed-signers the machine takes, from its first run on, only releases and data that one of them signed. Without, it
takes whatever etcd says.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Args: arguments(1, 1, "takes one node, like controller1"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := fleet.Ref(o.env)
			if err != nil {
				return err
			}
			n, err := environments.ParseNode(args[0])
			if err != nil {
				return err
			}
			if ref, err = ref.Of(n); err != nil {
				return err
			}
			o.connection.Fill(o.env)
			if len(o.connection.Endpoints) == 0 {
				return cli.Usagef("which etcd is the machine to reach? give --endpoints or set PULLEY_ENDPOINTS")
			}
			config := o.connection.Config()
			u.Node, u.Hostname, u.Role, u.Environment = n.String(), n.Hostname(), n.Role, ref.String()
			u.Endpoints, u.Prefix = config.Endpoints, config.Prefix
			if config.CACert != "" {
				if u.CACert, err = os.ReadFile(config.CACert); err != nil {
					return fmt.Errorf("cannot read the CA certificate: %w", err)
				}
			}
			if files.signers != "" {
				if u.AllowedSigners, err = files.signersOf(ref, o.env.Now()); err != nil {
					return err
				}
			}
			script, err := userdata.Render(u)
			if err != nil {
				return err
			}
			_, err = o.env.Stdout.Write(script)
			return err
		},
	}
	f := cmd.Flags()
	fleet.AddFlag(f)
	f.StringVar(&files.signers, "allowed-signers", "", "file of those who may sign what the machine runs, see ssh-keygen(1)")
	f.StringArrayVar(&u.Mirrors, "mirror", nil, "https URL where the machine fetches releases before it asks etcd; may be given again")
	f.StringVar(&u.AgentURL, "agent-url", "", "where the machine downloads pulley-agent (default: the image has it)")
	f.StringVar(&u.AgentSHA256, "agent-sha256", "", "checksum of that download")
	f.StringVar(&u.PuppetPackage, "puppet-package", "", "package that brings Puppet (default: the first that the machine's repositories have)")
	f.StringVar(&u.PuppetVersion, "puppet-version", "", "its version (default: the newest there is)")
	f.StringVar(&u.PackageRepo, "package-repo", "", "URL of a .deb or .rpm that sets up a package repository, or an apt line 'deb …'")
	f.StringVar(&u.Proxy, "proxy", "", "HTTP proxy of the machine's downloads")
	f.StringVar(&u.Schedule, "schedule", "", "of the agent, five cron fields (default: every five minutes)")
	return cmd
}

// signersOf refuses a list that the machine could not read, or that lets nobody sign for it: it would take nothing, and
// nobody would be there to see.
func (k *keyFiles) signersOf(ref environments.Ref, now time.Time) ([]byte, error) {
	signers, allowed, err := k.read()
	if err != nil {
		return nil, fmt.Errorf("cannot use %s: %w", k.signers, err)
	}
	if len(signers.MaySign(trust.Release, ref.Environment, now)) == 0 {
		return nil, fmt.Errorf("cannot use %s: nobody in %s may sign for %s\n`pulley key list --signers %s` shows who may, where and until when", k.signers, k.signers, ref.Environment, k.signers)
	}
	return allowed, nil
}

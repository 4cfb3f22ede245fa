package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/cli"
)

func newEnable(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "enable", Short: "Allow runs on this machine again", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return o.withDisk(func(d *agent.Disk) error {
				reason, err := d.Disabled()
				if err := errors.Join(err, d.Enable()); err != nil {
					return err
				}
				if reason == "" {
					fmt.Fprintln(o.env.Stdout, "runs were not disabled on this machine")
					return nil
				}
				fmt.Fprintf(o.env.Stdout, "runs are allowed on this machine again; they were disabled: %s\n", cli.Clean(string(reason)))
				return nil
			})
		},
	}
}

func newDisable(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "disable REASON", Short: "Forbid runs on this machine until `enable`; a current run finishes",
		Args: func(_ *cobra.Command, args []string) error {
			if strings.TrimSpace(strings.Join(args, " ")) == "" {
				return cli.Usagef("cannot disable runs: no reason given\nrun `pulley-agent disable REASON`")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			reason := fmt.Sprintf("%s (%s, %s)", cli.Clean(strings.Join(args, " ")), o.env.User, o.env.Now().UTC().Format("2006-01-02 15:04Z"))
			return o.withDisk(func(d *agent.Disk) error {
				if err := d.Disable(reason); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "no runs on this machine until `pulley-agent enable`: %s\n", reason)
				return nil
			})
		},
	}
}

// withDisk calls do with the node's state folder. It needs neither settings nor etcd.
func (o *options) withDisk(do func(*agent.Disk) error) error {
	d, err := agent.OpenDisk(filepath.Join(o.Root, "var/lib/pulley"))
	if err != nil {
		return err
	}
	return errors.Join(do(d), d.Close())
}

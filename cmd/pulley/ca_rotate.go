package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/pki"
)

func newCARotate(o *options) *cobra.Command {
	f := caFolder{options: o}
	var force bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "have the next CA sign from now on", Args: arguments(0, 0, "takes no arguments; --data-dir says where the CA is"),
		Long: `rotate makes the next CA the current one, and makes a new next one. The one that was current stays trusted. Servers get
certificates of the new CA within seconds, nodes within some hours; each renews by itself.

It refuses while somebody would be shut out: nodes and operators whose certificates are from before the next CA was made,
and an etcd that was started before. --force does it all the same; those who are shut out then have to join again.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley ca rotate --data-dir pulley-data`,
		RunE: func(c *cobra.Command, _ []string) error {
			ca, err := f.open()
			if err != nil {
				return err
			}
			n, err := f.census(c.Context(), ca)
			if err != nil {
				return err
			}
			if err := o.permitted("rotate the CA", force, n.beforeRotating(ca)); err != nil {
				return err
			}
			if err := ca.Rotate(force); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s signs from now on; the fingerprints for new machines are %s\n", ca.Fingerprints()[0], strings.Join(ca.Fingerprints(), " and "))
			fmt.Fprintln(o.env.Stdout, "restart `pulley serve` at some time before the next rotation: etcd learns of a new CA only at its start")
			fmt.Fprintln(o.env.Stdout, "`pulley ca show` tells when nobody has a certificate of the CA before; then run `pulley ca retire`")
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also if somebody is shut out, or etcd can't be asked")
	return cmd
}

func newCARetire(o *options) *cobra.Command {
	f := caFolder{options: o}
	var force bool
	cmd := &cobra.Command{
		Use: "retire", Short: "end the trust in the CA before the last rotation", Args: arguments(0, 0, "takes no arguments; --data-dir says where the CA is"),
		Long: `retire takes the previous CA off the list of those that are trusted. Serve's own listener follows at once, etcd at its
next start, nodes at their next renewal. It refuses while somebody has a certificate of that CA, unless forced.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley ca retire --data-dir pulley-data`,
		RunE: func(c *cobra.Command, _ []string) error {
			ca, err := f.open()
			if err != nil {
				return err
			}
			previous := part(ca, pki.PartPrevious)
			if previous == nil {
				fmt.Fprintln(o.env.Stdout, "there is no previous CA: nothing to retire")
				return nil
			}
			n, err := f.census(c.Context(), ca)
			if err != nil {
				return err
			}
			if err := o.permitted("retire the previous CA", force, n.beforeRetiring(ca)); err != nil {
				return err
			}
			if err := ca.Retire(); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s is not trusted any more; etcd follows when `pulley serve` is started again\n", previous.Fingerprint)
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also if somebody is shut out, or etcd can't be asked")
	return cmd
}

// permitted is nil when nothing stands against an act, or it is forced: then that is told.
func (o *options) permitted(act string, force bool, against []string) error {
	if len(against) == 0 {
		return nil
	}
	if force {
		for _, reason := range against {
			cli.Complain(o.env, program, errors.New("forced, although "+reason))
		}
		return nil
	}
	return fmt.Errorf("cannot %s: %s\n--force does it all the same", act, strings.Join(against, "\n"))
}

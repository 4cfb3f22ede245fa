package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/serve"
)

func newCARotate(o *options) *cobra.Command {
	f := caFolder{options: o}
	var force, stolen bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "have the next CA sign from now on", Args: arguments(0, 0, "takes no arguments; --data-dir says where the CA is"),
		Long: `rotate makes the next CA the current one, and makes a new next one. The one that was current stays trusted. Servers get
certificates of the new CA within seconds, nodes within some hours; each renews by itself.

It refuses while somebody would be shut out: nodes and operators whose certificates are from before the next CA was made,
and an etcd that was started before. --force does it all the same; those who are shut out then have to join again.

With --stolen the CA that was current is not trusted any more: whoever has its key must not get a certificate of the new
one. End serve first. Then nobody's certificate is good any more, and all nodes and operators have to join again. Where
next.key may be stolen too, as it lies beside ca.key, do it twice.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley ca rotate --data-dir pulley-data
  pulley ca rotate --data-dir pulley-data --stolen`,
		RunE: func(c *cobra.Command, _ []string) error {
			ca, err := f.open()
			if err != nil {
				return err
			}
			if stolen {
				return f.replaceStolen(ca)
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
	cmd.Flags().BoolVar(&stolen, "stolen", false, "the CA's key was stolen: shut out everybody who has a certificate of it")
	return cmd
}

// replaceStolen has the next CA sign, and nobody trust the one before. While serve runs that can't be done: until etcd is
// started again it takes whatever the stolen key signs, and in the moment in which both CAs are trusted a certificate of the
// stolen one could be renewed.
func (f *caFolder) replaceStolen(ca *pki.CA) (err error) {
	release, err := serve.KeepOut(f.dataDir)
	if err != nil {
		return fmt.Errorf("cannot replace a stolen CA: %w\nend it first: until it is started again, etcd takes every certificate that the thief makes", err)
	}
	defer func() { err = errors.Join(err, release()) }()
	stolen := ca.Fingerprints()[0]
	if err := ca.Rotate(true); err != nil {
		return err
	}
	if err := ca.Retire(); err != nil {
		return err
	}
	fmt.Fprintf(f.env.Stdout, "%s is trusted by nobody here any more\n", stolen)
	fmt.Fprintf(f.env.Stdout, "%s signs from now on; the fingerprints for new machines are %s\n", ca.Fingerprints()[0], strings.Join(ca.Fingerprints(), " and "))
	fmt.Fprintln(f.env.Stdout, "where next.key may be stolen too, do this once more; then start `pulley serve` on loopback only, and revoke all tokens before anybody joins")
	return nil
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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/store"
)

func newSecret(o *options) *cobra.Command {
	return group("secret", "Set and list secrets in live data", `A secret is a value of live data that only the nodes of one role can decrypt, or all nodes of the environment. It is encrypted
before it leaves this command. Puppet receives it as a Sensitive. Each change is a new generation of the environment's data, as with
`+"`pulley data set`"+`. `+"`pulley data unset`"+` removes a secret. Secrets need a fleet with certificates (`+"`pulley serve --auth`"+`).`, newSecretSet(o), newSecretList(o), newSecretRotate(o))
}

func newSecretSet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "set KEY -e ENVIRONMENT", Short: "Set a key of one layer to a secret from standard input",
		Long: `set reads the secret from standard input, or asks for it at a terminal. It never takes it as an argument, which other users
of the machine could read. One line break at the end is not part of the secret. With --role and --node, only the nodes of that role
can decrypt it; without them, all nodes of the environment.

EXIT STATUS
  0 done; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held or silent, 5 its time passed`,
		Args: arguments(1, 1, "takes a key; the secret comes from standard input"),
	}
	d.sign.add(cmd)
	d.sign.addUnsigned(cmd)
	d.addDryRun(cmd)
	d.wait.add(cmd, "wait until the nodes that see the layer took the data")
	d.addMessage(cmd, "reason")
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		sealer, err := d.sealer()
		if err != nil {
			return fmt.Errorf("cannot set secret %s: %w", args[0], err)
		}
		value, err := cli.ReadSecret(d.env, "secret "+args[0]+": ", secrets.MaxBytes)
		if err != nil {
			return fmt.Errorf("cannot read secret %s: %w", args[0], err)
		}
		edit := change.DataEdit{Scope: d.layer, Common: d.common, Key: args[0]}
		done, err := change.SetSecret(ctx, s, ref, edit, value, sealer, d.changing())
		if err != nil {
			return err
		}
		announcePermit(d.env, done.Change)
		warnUnstated(d.env, ref, done.Unstated)
		d.announceData(ref, args[0], done)
		return d.await(ctx, s, change.AwaitingData(ref, d.layer, done))
	})
}

// sealer returns what certifies recipients, with the identity of this operator.
func (o *options) sealer() (change.Sealer, error) {
	c := o.connection
	if c.CACert == "" || c.Cert == "" {
		return change.Sealer{}, change.ErrNoCA
	}
	bundle, err := os.ReadFile(c.CACert)
	if err != nil {
		return change.Sealer{}, fmt.Errorf("cannot read the fleet's CA certificates: %w", err)
	}
	return change.Sealer{Bundle: bundle, DryRun: o.dryRun, Sealing: func(ctx context.Context, r join.SealingRequest) (join.SealingAnswer, error) {
		if len(o.servers()) == 0 {
			return join.SealingAnswer{}, errors.New("no server of joins is known, which certifies who may read it\nset PULLEY_SERVERS to https://HOST:8443 of `pulley serve`, or `pulley context set NAME --servers`")
		}
		identity, err := pki.LoadIdentity(c.Cert)
		if err != nil {
			return join.SealingAnswer{}, err
		}
		trust, err := identity.TLS(bundle)
		if err != nil {
			return join.SealingAnswer{}, err
		}
		client, err := join.NewClient(o.servers(), trust, 0)
		if err != nil {
			return join.SealingAnswer{}, err
		}
		return client.Sealing(ctx, r)
	}}, nil
}

func newSecretRotate(o *options) *cobra.Command {
	var role string
	var lost bool
	cmd := &cobra.Command{
		Use: "rotate -e ENVIRONMENT", Short: "Encrypt the secrets of a role to a new recipient", Args: arguments(0, 0, "takes no arguments; --role names the role"),
		Long: `rotate makes a new recipient for the secrets of a role, or without --role for those of the environment, and encrypts the present
secrets to it, in a new generation of data. Nodes get the new identity at their next run. The values stay the same, and who had the former
identity may know them: after a theft, or after the removal of a node that others may read, set new values, too.

With --lost, the former identities are lost: rotate encrypts nothing again. Set each secret again.`,
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&role, "role", "", "the secrets of one role")
	cmd.Flags().BoolVar(&lost, "lost", false, "forget the former identities, which serve cannot decrypt")
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.sign.check(o.env); err != nil {
			return err
		}
		return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
			sealer, err := o.sealer()
			if err != nil {
				return fmt.Errorf("cannot rotate the secrets of %s: %w", ref, err)
			}
			done, err := change.RotateSecrets(ctx, s, ref, change.Rotation{Role: role, Lost: lost}, sealer, o.changing())
			if err != nil {
				return err
			}
			o.announceRotation(ref, role, lost, done)
			return nil
		})
	}
	return cmd
}

func (o *options) announceRotation(ref environments.Ref, role string, lost bool, done change.Rotated) {
	of := "environment " + ref.String()
	if role != "" {
		of = "role " + role + " of " + ref.String()
	}
	announcePermit(o.env, done.Change)
	warnUnstated(o.env, ref, done.Unstated)
	again := cli.Count(len(done.Secrets), "secret") + " encrypted again"
	if lost {
		again = "set these secrets again"
	}
	if done.Made {
		again += fmt.Sprintf(", in data %d (epoch %d)", done.Generation, done.Epoch)
	}
	fmt.Fprintf(o.env.Stdout, "new recipient of %s; %s\n", of, again)
	for _, one := range done.Secrets {
		cli.Cleanf(o.env.Stdout, "  %s of layer %s\n", one.Key, one.Layer)
	}
}

func newSecretList(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "list -e ENVIRONMENT", Short: "List the secrets of live data, without their values", Args: arguments(0, 0, "takes no arguments"),
		Long: `list shows the layer and the key of each secret, and whose nodes can decrypt it. A secret that is not current is encrypted to a
former recipient of its role.`,
	}
	o.out.AddFlags(cmd.Flags())
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, _ []string) error {
		list, err := change.ListSecrets(ctx, s, ref, d.layer, d.common)
		if err != nil {
			return err
		}
		return d.out.Print(d.env, list, func(t *cli.Table) error {
			if len(list) == 0 {
				fmt.Fprintln(d.env.Stdout, "no secret is set")
				return nil
			}
			t.Row("LAYER", "KEY", "READ BY", "ENCRYPTED TO")
			for _, v := range list {
				readers, to := "all nodes", v.Recipient
				if v.Role != "" {
					readers = "role " + v.Role
				}
				switch {
				case v.Since.IsZero():
					to += " (unknown)"
				case !v.Current:
					to += " (former, of " + v.Since.Format(time.DateOnly) + ")"
				}
				t.Row(string(v.Layer), v.Key, readers, to)
			}
			return nil
		})
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/promotion"
	"pulley/internal/rollouts"
	"pulley/internal/secrets"
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
	d.addChange(cmd)
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		sealer, err := d.sealer()
		if err != nil {
			return fmt.Errorf("cannot set secret %s: %w", args[0], err)
		}
		value, err := cli.ReadSecret(ctx, d.env, "secret "+args[0]+": ", secrets.MaxBytes)
		if err != nil {
			return fmt.Errorf("cannot read secret %s: %w", args[0], err)
		}
		done, err := rollouts.ChangeData(ctx, s, ref, d.starting(), func() (data.Edited, error) {
			return data.SetSecret(ctx, s, ref, d.editing(), args[0], value, sealer, d.changing())
		})
		if err != nil {
			return err
		}
		if done.WasPlain {
			fmt.Fprintf(d.env.Stderr, "%s: warning: the former value of %s is plain text, and stays in older generations and in the history: it is no secret any more\n", program, args[0])
		}
		return d.changed(ctx, s, ref, done)
	})
}

// sealer returns what certifies recipients, with the identity of this operator.
func (o *options) sealer() (data.Sealer, error) {
	c := o.connection
	if c.CACert == "" || c.Cert == "" {
		return data.Sealer{}, data.ErrNoCA
	}
	bundle, err := bounded.ReadFile(c.CACert, 1<<20)
	if err != nil {
		return data.Sealer{}, fmt.Errorf("cannot read the fleet's CA certificates: %w", err)
	}
	return data.Sealer{Bundle: bundle, DryRun: o.dryRun, Sealing: func(ctx context.Context, r join.SealingRequest) (join.SealingAnswer, error) {
		client, err := o.joins(bundle)
		if err != nil {
			return join.SealingAnswer{}, err
		}
		return client.Sealing(ctx, r)
	}, Reveal: func(ctx context.Context, r join.RevealRequest) ([][]byte, error) {
		client, err := o.joins(bundle)
		if err != nil {
			return nil, err
		}
		return client.Reveal(ctx, r)
	}}, nil
}

// joins returns the client of this operator for the servers of joins.
func (o *options) joins(bundle []byte) (*join.Client, error) {
	if len(o.servers()) == 0 {
		return nil, errors.New("no server of joins is known, which keeps the identities of secrets\nset PULLEY_SERVERS to https://HOST:8443 of `pulley serve`, or `pulley context set NAME --servers`")
	}
	identity, err := pki.LoadIdentity(o.connection.Cert)
	if err != nil {
		return nil, err
	}
	trust, err := identity.TLS(bundle)
	if err != nil {
		return nil, err
	}
	return join.NewClient(o.servers(), trust, 0)
}

func newSecretRotate(o *options) *cobra.Command {
	var role string
	var lost bool
	cmd := &cobra.Command{
		Use: "rotate -e ENVIRONMENT", Short: "Encrypt the secrets of a role to a new recipient", Args: arguments(0, 0, "takes no arguments; --role names the role"),
		Long: `rotate makes a new recipient for the secrets of a role, or without --role for those of the environment, and encrypts the present
secrets to it, in a new generation of data. Nodes get the new identity at their next run. The values stay the same, and who had the former
identity may know them: after a theft, or after the removal of a node that others may read, set new values, too.

With --lost, rotate forgets the former identities that no ` + "`pulley serve`" + ` decrypts, because its pki/secrets.key is lost. It encrypts nothing
again: set each secret again. All servers of the context must answer, and none may decrypt the identities. This needs an administrator, and
asks for confirmation; in scripts, use --yes.`,
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&role, "role", "", "the secrets of one role")
	cmd.Flags().BoolVar(&lost, "lost", false, "forget the former identities, which serve cannot decrypt")
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason")
	o.addAbort(cmd)
	o.addConfirmation(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if lost {
			if err := o.mayConfirm(); err != nil {
				return err
			}
		}
		if err := o.sign.check(o.env); err != nil {
			return err
		}
		return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
			sealer, err := o.sealer()
			if err != nil {
				return fmt.Errorf("cannot rotate the secrets of %s: %w", ref, err)
			}
			if lost {
				if err := o.confirmLost(ctx, ref, role); err != nil {
					return err
				}
			}
			done, err := data.RotateSecrets(ctx, s, ref, data.Rotation{Role: role, Lost: lost}, sealer, o.changing())
			if err != nil {
				return err
			}
			o.announceRotation(ref, role, lost, done)
			return nil
		})
	}
	return cmd
}

// confirmLost asks for the end of identities, after each server reported that they are lost.
func (o *options) confirmLost(ctx context.Context, ref model.Ref, role string) error {
	bundle, err := bounded.ReadFile(o.connection.CACert, 1<<20)
	if err != nil {
		return fmt.Errorf("cannot read the fleet's CA certificates: %w", err)
	}
	client, err := o.joins(bundle)
	if err == nil {
		err = client.LostAt(ctx, ref.String(), role)
	}
	if err != nil {
		return fmt.Errorf("cannot forget the identities of the secrets of %s: %w", scopeOf(ref, role), err)
	}
	return o.confirm(ctx, fmt.Sprintf("A backup of pki/secrets.key cannot restore the secrets of %s afterwards.\nForget their identities?", scopeOf(ref, role)))
}

func (o *options) announceRotation(ref model.Ref, role string, lost bool, done data.Rotated) {
	announcePermit(o.env, done.Change)
	warnUnstated(o.env, ref, done.Unstated)
	again := cli.Count(len(done.Secrets), "secret") + " encrypted again"
	if lost {
		again = "set these secrets again"
	}
	if done.Made {
		again += fmt.Sprintf(", in data %d (epoch %d)", done.Generation, done.Epoch)
	}
	fmt.Fprintf(o.env.Stdout, "new recipient of %s; %s\n", scopeOf(ref, role), again)
	for _, one := range done.Secrets {
		cli.Cleanf(o.env.Stdout, "  %s of layer %s\n", one.Key, one.Layer)
	}
	for _, one := range done.LeftOut {
		of := one.Key + " -e " + ref.String() + one.Layer.Flags()
		why := "no node of this layer decrypts it\nset it again: `pulley secret set " + of + "`"
		if one.NoNode {
			why = "no host list has its node\nremove it: `pulley data unset " + of + "`"
		}
		cli.Complain(o.env, program, fmt.Errorf("warning: %s of layer %s is left out: %s", one.Key, one.Layer, why))
	}
}

// rotateAfter rotates the secrets that a removed node could read. The node is removed already: it gets no new identity.
func (o *options) rotateAfter(ctx context.Context, s *etcd.DB, ref model.Ref, node string, identity *access.Identity) error {
	rotations, err := data.RotationsAfter(ctx, s, ref, identity)
	if err != nil {
		return fmt.Errorf("cannot find the secrets that %s could read: %w\nrotate them: `pulley secret rotate -e %s --role ROLE`, and without --role", node, err, ref)
	}
	var failed []error
	for _, r := range rotations {
		sealer, err := o.sealer()
		var done data.Rotated
		if err == nil {
			done, err = data.RotateSecrets(ctx, s, ref, r, sealer, o.changing())
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s is removed; cannot rotate the secrets of %s that it could read: %w\nits identity decrypts also later ones until you run `pulley secret rotate -e %s%s`",
				node, scopeOf(ref, r.Role), err, ref, promotion.Flags(promotion.Scope{Role: r.Role})))
			continue
		}
		o.announceRotation(ref, r.Role, false, done)
	}
	if len(rotations) > len(failed) {
		fmt.Fprintf(o.env.Stdout, "%s may know the present values: set new ones with `pulley secret set KEY -e %s` if other people could read its disk\n", node, ref)
	}
	return errors.Join(failed...)
}

func scopeOf(ref model.Ref, role string) string {
	if role == "" {
		return "environment " + ref.String()
	}
	return "role " + role + " of " + ref.String()
}

func newSecretList(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "list -e ENVIRONMENT", Short: "List the secrets of live data, without their values", Args: arguments(0, 0, "takes no arguments"),
		Long: `list shows the layer and the key of each secret, and whose nodes can decrypt it. A secret that is not current is encrypted to a
former recipient of its role.`,
	}
	o.out.AddFlags(cmd.Flags())
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, _ []string) error {
		list, err := data.ListSecrets(ctx, s, ref, d.only())
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
				if v.NoNode {
					readers = "no node"
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

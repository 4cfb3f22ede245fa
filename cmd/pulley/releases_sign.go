package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newReleasesSign(o *options) *cobra.Command {
	var with signFlag
	var replace bool
	cmd := &cobra.Command{
		Use:   "sign VERSION --sign-key FILE",
		Short: "Add a signature to a release, or replace its signatures",
		Long: `sign signs the record of a release that is published already: one that was published without a signature, or whose
signer is to be followed by another. The record itself stays as it is, byte for byte. What the same key signed before is
replaced; a release has at most 8 signatures. FILE is a private key, or a public one whose private part an ssh-agent or a
hardware key has.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			if with.key(o.env) == nil {
				return cli.Usagef("give --sign-key FILE or set PULLEY_SIGN_KEY")
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				return o.signRelease(ctx, s, args[0], with.sign(o.env), replace)
			})
		},
	}
	with.add(cmd)
	cmd.Flags().Lookup("sign-key").Usage = "SSH key to sign with [PULLEY_SIGN_KEY]"
	cmd.Flags().BoolVar(&replace, "replace", false, "take the signatures away that it has")
	return cmd
}

func (o *options) signRelease(ctx context.Context, s *store.Store, version string, sign store.Sign, replace bool) error {
	if err := change.Retry(func() error { return s.Releases.Sign(ctx, version, sign, !replace) }); err != nil {
		return err
	}
	r, err := s.Releases.Get(ctx, version)
	if err != nil {
		return err
	}
	all := signaturesOf(r.Signatures)
	fmt.Fprintf(o.env.Stdout, "%s has %s:\n", r.Version, cli.Count(len(all), "signature"))
	for _, one := range all {
		kind := one.Type
		if kind == "" {
			kind = "nobody can tell whose it is"
		}
		cli.Cleanf(o.env.Stdout, "  %s (%s)\n", one.Key, kind)
	}
	return nil
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/firstboot/plans"
	"pulley/internal/machines/plan"
	"pulley/internal/store"
)

// completed adds the settings of the flags that the environment does not set itself. It returns the machine settings of
// the operator's connection.
func (u *firstBootFlags) completed(c *cobra.Command, e *environments.Environment) (*plans.Connection, error) {
	if u.signers == noSigners {
		u.signers, u.unsigned = "", true
	}
	boot, err := u.connectionOnly()
	if err == nil {
		err = u.read(c, e.Ref())
	}
	if err != nil {
		return boot, err
	}
	return boot, boot.Complete(e, u.plan.Settings)
}

// noSigners is the value of --allowed-signers for machines that verify no signatures.
const noSigners = "none"

// checkBoots refuses a plan whose machines could never become nodes, or would verify no signatures without the
// operator's confirmation. For a stored plan, the operator confirmed it when the plan was made.
func (u *firstBootFlags) checkBoots(ctx context.Context, s *store.Store, p plan.Plan, stored bool) error {
	if p.Driver == environments.DriverNone {
		return nil
	}
	if err := u.checkJoins(ctx, s, p); err != nil || stored || u.unsigned {
		return err
	}
	was, _, err := s.Environments.Spec(ctx, p.Fleet)
	if err != nil {
		return err
	}
	if role := plans.UnsignedRole(was, p.Spec); role != "" {
		return fmt.Errorf("cannot apply %s: new machines of %s would run what nobody signed: allowed_signers are stored, and neither the file nor a flag gives them\n"+
			"give --allowed-signers FILE again, or `allowed_signers:` in the file's userdata\nwhere it is meant so, agree to it: --allowed-signers %s", p.Fleet, role, noSigners)
	}
	return nil
}

// checkJoins refuses to create machines that could not reach etcd: they get a certificate only when they join.
func (u *firstBootFlags) checkJoins(ctx context.Context, s *store.Store, p plan.Plan) error {
	role := neverJoins(p)
	if role == "" {
		return nil
	}
	certified := u.connection.Cert != ""
	if !certified {
		var err error
		if certified, err = s.Access.AuthEnabled(ctx); err != nil {
			return err
		}
	}
	if !certified {
		return nil
	}
	return fmt.Errorf("cannot apply %s: new machines of %s could never join: etcd checks its users, and nothing says where they get a certificate\n"+
		"give the URL of `pulley serve`: `servers:` in the file's userdata, or --servers https://HOST:8443; or `endpoints:` where machines bring certificates of their own", p.Fleet, role)
}

// neverJoins returns the first role with a new machine that has no server to join and no alternative, or "".
func neverJoins(p plan.Plan) string {
	for _, step := range p.Steps {
		if step.Creates && plans.NeedsJoin(p.Spec, step.Role) {
			return step.Role
		}
	}
	return ""
}

// connectionOnly returns the machine settings of the operator's connection.
func (u *firstBootFlags) connectionOnly() (*plans.Connection, error) {
	u.connection.Fill(u.env)
	config := u.connection.Config()
	boot := &plans.Connection{Prefix: config.Prefix, Endpoints: config.Endpoints}
	if config.CACert == "" {
		return boot, nil
	}
	return boot, boot.ReadCACert(config.CACert)
}

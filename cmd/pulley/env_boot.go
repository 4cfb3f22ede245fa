package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/environments"
	"pulley/internal/machines/plan"
	"pulley/internal/store"
	"pulley/userdata"
)

// into puts what the command line says of first boots into an environment, where that says nothing: so it is stored with it,
// and a machine that is made again, by whomever, boots as the first one did. What is returned is what nothing says but this
// connection: how etcd and its servers are known.
func (u *firstBootFlags) into(c *cobra.Command, e *environments.Environment) (*bootDefaults, error) {
	if u.files.signers == noSigners {
		u.files.signers, u.unsigned = "", true
	}
	d, err := u.bootDefaults(c, e.Ref())
	if err != nil {
		return nil, err
	}
	said, to := d.told, &e.Userdata
	d.told = userdata.Options{Environment: said.Environment, Prefix: said.Prefix}
	if e.Driver() == environments.DriverNone {
		if len(said.CA) == 0 {
			said.CA = d.pins
		}
		return d, pin(e, said.CA) // whoever makes these machines says what they are told
	}
	for _, l := range []struct {
		to   *[]string
		said []string
	}{{&to.Servers, said.Servers}, {&to.CA, said.CA}, {&to.Mirrors, said.Mirrors}, {&to.AgentURLs, said.AgentURLs}} {
		if len(*l.to) == 0 {
			*l.to = l.said
		}
	}
	for _, s := range []struct {
		to   *string
		said string
	}{
		{&to.AllowedSigners, string(said.AllowedSigners)}, {&to.PuppetPackage, said.PuppetPackage}, {&to.PuppetVersion, said.PuppetVersion},
		{&to.PackageRepo, said.PackageRepo}, {&to.Proxy, said.Proxy}, {&to.Schedule, said.Schedule},
	} {
		if *s.to == "" {
			*s.to = s.said
		}
	}
	if len(to.AgentSHA256) == 0 && len(said.AgentSHA256) > 0 {
		to.AgentSHA256 = map[string]string{}
		for arch, sum := range said.AgentSHA256 {
			if arch == "" {
				arch = "any"
			}
			to.AgentSHA256[arch] = sum
		}
	}
	to.Pre, to.Post = slices.Concat(texts(said.Pre), to.Pre), slices.Concat(texts(said.Post), to.Post)
	if len(said.Steps) > 0 {
		steps := maps.Clone(said.Steps)
		maps.Copy(steps, to.Steps)
		to.Steps = steps
	}
	if len(to.Servers) > 0 && len(to.CA) == 0 {
		to.CA = d.pins
	}
	return d, pin(e, d.pins)
}

// noSigners is what --allowed-signers says instead of a file where machines are to check no signatures.
const noSigners = "none"

// howToPin says where an operator has the pins from.
const howToPin = "give their pins: --cacert or PULLEY_CACERT with their CA's certificates, --ca sha256:…, or `ca:` in the environment's userdata; `pulley serve` tells them when it starts"

// pin fills in by what machines know the servers that the file names, where it does not say it itself.
func pin(e *environments.Environment, pins []string) error {
	for i := range e.Roles {
		r := &e.Roles[i]
		u := e.UserdataOf(*r)
		switch {
		case len(u.Servers) == 0 || len(u.CA) > 0:
		case len(pins) == 0 && r.Cardinality == 0: // no machine is told of them
		case len(pins) == 0:
			return fmt.Errorf("cannot make userdata of role %s: its machines can't know their servers\n%s", r.Name, howToPin)
		case len(r.Userdata.Servers) > 0:
			r.Userdata.CA = pins
		default:
			e.Userdata.CA = pins
		}
	}
	return nil
}

// checkBoots refuses a plan whose machines could never become nodes, or would check no signatures although nobody said so.
// Whether they are to check some was asked when a stored plan was made.
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
	if role := unsignedNow(was, p.Spec); role != "" {
		return fmt.Errorf("cannot apply %s: new machines of %s would run what nobody signed: allowed_signers are stored, and neither the file nor a flag gives them\n"+
			"give --allowed-signers FILE again, or `allowed_signers:` in the file's userdata\nwhere it is meant so, agree to it: --allowed-signers %s", p.Fleet, role, noSigners)
	}
	return nil
}

// unsignedNow names the first role that loses its allowed signers; "" for none.
func unsignedNow(was, want *environments.Environment) string {
	if was == nil {
		return ""
	}
	for _, r := range want.Roles {
		old, there := was.Role(r.Name)
		if !there {
			old = environments.Role{Name: r.Name}
		}
		if was.UserdataOf(old).AllowedSigners != "" && want.UserdataOf(r).AllowedSigners == "" {
			return r.Name
		}
	}
	return ""
}

// checkJoins refuses to make machines that etcd would not let in: they get a certificate only where they join.
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

// neverJoins names the first role of which machines would be made that are told no servers, and nothing instead; "" for none.
func neverJoins(p plan.Plan) string {
	for _, step := range p.Steps {
		if !step.Makes {
			continue
		}
		r, ok := p.Spec.Role(step.Role)
		if !ok {
			continue
		}
		if told := p.Spec.UserdataOf(r); len(told.Servers)+len(told.Endpoints) == 0 && told.Steps["join"] == "" {
			return r.Name
		}
	}
	return ""
}

// connectionOnly is what into returns, for an environment that says all: nothing of the command line goes into it.
func (u *firstBootFlags) connectionOnly(c *cobra.Command, ref environments.Ref) (*bootDefaults, error) {
	d, err := u.bootDefaults(c, ref)
	if err != nil {
		return nil, err
	}
	d.told = userdata.Options{Environment: d.told.Environment, Prefix: d.told.Prefix}
	return d, nil
}

// said names the first of these flags that the command line has; "" for none.
func (u *firstBootFlags) said(c *cobra.Command) (name string) {
	var own pflag.FlagSet
	(&firstBootFlags{}).add(&own)
	own.VisitAll(func(f *pflag.Flag) {
		if name == "" && c.Flags().Changed(f.Name) {
			name = f.Name
		}
	})
	return name
}

func texts(scripts []userdata.Step) (all []string) {
	for _, s := range scripts {
		all = append(all, string(s.Text))
	}
	return all
}

package main

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/environments"
	"pulley/userdata"
)

// into puts what the command line says of first boots into an environment, where that says nothing: so it is stored with it,
// and a machine that is made again, by whomever, boots as the first one did. What is returned is what nothing says but this
// connection: how etcd and its servers are known.
func (u *firstBootFlags) into(c *cobra.Command, e *environments.Environment) (*bootDefaults, error) {
	d, err := u.bootDefaults(c, e.Ref())
	if err != nil {
		return nil, err
	}
	said, to := d.told, &e.Userdata
	d.told = userdata.Options{Environment: said.Environment, Prefix: said.Prefix}
	if e.Driver() == environments.DriverNone {
		return d, nil // whoever makes these machines says what they are told
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
	return d, nil
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

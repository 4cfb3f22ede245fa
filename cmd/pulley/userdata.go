package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/atomicfile"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/firstboot/plans"
	"pulley/internal/fleet"
	"pulley/internal/join/tokens"
	"pulley/internal/store"
	"pulley/userdata"
)

// nocloud is the only form that is a folder, not a text.
const nocloud = "nocloud"

// userdataOptions are the flags for one machine, or for a group.
type userdataOptions struct {
	firstBootFlags
	fleet cli.EnvironmentFlag

	role, group, hostname string
	token, tokenFile      string
	newToken              bool
	expires               time.Duration

	form           string
	to, networkYML string
}

func newUserdata(o *options) *cobra.Command {
	u := userdataOptions{firstBootFlags: firstBootFlags{options: o}}
	cmd := &cobra.Command{
		Use:   "userdata NODE -e ENVIRONMENT",
		Short: "Print the payload that turns a bare machine into a node",
		Long: `userdata prints what cloud-init runs on a machine's first boot: it puts the agent in place and tells
` + "`pulley-agent bootstrap`" + ` what the machine is to become.

  userdata NODE          for one machine, which becomes this node
  userdata --role ROLE   for one machine, which claims the next free number of the role
  userdata --group ROLE  for many, as an autoscaling group has them: each claims a number, and leaves when it is powered off

With --servers the machine joins there and gets an identity of its own; it knows them by --ca, and --token or --new-token
lets it in. With --new-token and without --servers, they and what else no flag says are taken from the environment's userdata,
all but its scripts and steps. Without either, etcd is taken as --endpoints says, and nothing is asked of anybody.

With --allowed-signers the machine takes, from its first run on, only releases and data that one of them signed. Without, it
takes whatever etcd says.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes one node, like controller1, or --role ROLE, or --group ROLE"),
		RunE: func(c *cobra.Command, args []string) error { return u.run(c, args) },
	}
	f := cmd.Flags()
	u.fleet.AddFlag(f)
	f.StringVar(&u.role, "role", "", "role whose next free number the machine claims; with NODE, the role of a machine of another name")
	f.StringVar(&u.group, "group", "", "the same for many machines, which leave when they are powered off")
	f.StringVar(&u.form, "format", string(userdata.Script), "script, cloud-config, multipart or nocloud (a seed, with --to)")
	f.StringVar(&u.to, "to", "", "folder to write a NoCloud seed to")
	f.StringVar(&u.networkYML, "network-config", "", "file with the machine's network, for the seed")
	u.add(f)
	f.StringVar(&u.token, "token", "", "token that the machine joins with")
	f.StringVar(&u.tokenFile, "token-file", "", "file that has the token; - is standard input")
	f.BoolVar(&u.newToken, "new-token", false, "make a token for exactly this: of one use, for a group of any number")
	f.DurationVar(&u.expires, "expires", tokens.DefaultLifetime, "how long the new token is good")
	f.StringVar(&u.hostname, "hostname", "", "name of the machine: node (as the node is called), keep, or a name (default: node)")
	return cmd
}

func (u *userdataOptions) run(c *cobra.Command, args []string) error {
	ref, err := u.fleet.Ref(u.env)
	if err == nil {
		err = u.checkFlags(args)
	}
	if err != nil {
		return err
	}
	if ref, err = u.name(ref, args); err != nil {
		return err
	}
	if err := u.read(c, ref); err != nil {
		return err
	}
	for _, add := range []func() error{
		func() error { return u.addStored(c, ref) },
		func() error { return u.addConnection(c) },
		func() error { return u.addToken(c, ref) },
	} {
		if err := add(); err != nil {
			return err
		}
	}
	if u.form == nocloud {
		return u.writeSeed()
	}
	text, err := userdata.Render(u.plan, userdata.Form(u.form))
	if err == nil {
		_, err = u.env.Stdout.Write(text)
	}
	return err
}

// checkFlags rejects flags that exclude each other.
func (u *userdataOptions) checkFlags(args []string) error {
	forms := []string{nocloud}
	for _, f := range userdata.Forms {
		forms = append(forms, string(f))
	}
	given := 0
	for _, is := range []bool{u.token != "", u.tokenFile != "", u.newToken} {
		if is {
			given++
		}
	}
	switch {
	case len(args) == 0 && u.role+u.group == "":
		return cli.Usagef("`pulley userdata` takes one node, like controller1, or --role ROLE, or --group ROLE")
	case u.role != "" && u.group != "":
		return cli.Usagef("--role and --group exclude each other")
	case len(args) > 0 && u.group != "":
		return cli.Usagef("--group is for many machines: leave out %s", quoted(args[0]))
	case !slices.Contains(forms, u.form):
		return cli.Usagef("there is no format %s; there are %s", quoted(u.form), strings.Join(forms, ", "))
	case (u.form == nocloud) != (u.to != ""):
		return cli.Usagef("--format nocloud and --to DIR belong together: the seed is a folder")
	case u.form != nocloud && u.networkYML != "":
		return cli.Usagef("--network-config is for --format nocloud")
	case given > 1:
		return cli.Usagef("--token, --token-file and --new-token exclude each other")
	case u.newToken && (u.expires <= 0 || u.expires > tokens.MaxLifetime):
		return cli.Usagef("cannot create a token that is valid for %s: give --expires a time of at most %s", u.expires, tokens.MaxLifetime)
	}
	return nil
}

// name sets the node, its role and the name of the machine.
func (u *userdataOptions) name(ref environments.Ref, args []string) (environments.Ref, error) {
	node := ""
	if len(args) > 0 {
		node = args[0]
	}
	p, ref, err := plans.ForNode(ref, node, cmp.Or(u.group, u.role), u.hostname == "keep")
	if err != nil {
		return ref, &cli.UsageError{Problem: err.Error()}
	}
	switch u.hostname {
	case "":
	case "keep":
		p.Hostname = ""
	case firstboot.NodeHostname:
		p.Hostname = cmp.Or(p.Hostname, p.Node)
	default:
		p.Hostname = u.hostname
	}
	if u.group != "" {
		p.Leave = firstboot.LeavePoweroff
	}
	u.plan = p.Over(u.plan)
	return ref, nil
}

// addStored adds the settings of the stored environment for a machine that gets a new token, unless flags set the
// servers. It skips scripts and steps, because an existing machine has its own.
func (u *userdataOptions) addStored(c *cobra.Command, ref environments.Ref) error {
	if !u.newToken || len(u.plan.Servers) > 0 {
		return nil
	}
	return u.withStore(c, func(ctx context.Context, s *store.Store) error {
		e, _, err := s.Environments.MustSpec(ctx, ref)
		if err == nil {
			err = fleet.CheckRole(e, u.plan.Role)
		}
		if err != nil {
			return err
		}
		r, _ := e.Role(u.plan.Role)
		stored := e.UserdataOf(r)
		stored.Pre, stored.Post, stored.Steps, stored.Endpoints = nil, nil, nil, nil
		u.plan.Settings = u.plan.Settings.Over(stored)
		return nil
	})
}

// addConnection adds the settings of the operator's connection: the pins of the servers or, without servers, etcd.
func (u *userdataOptions) addConnection(c *cobra.Command) error {
	boot, err := u.connectionOnly()
	if err != nil {
		return err
	}
	p := &u.plan
	p.Prefix = boot.Prefix
	switch joins := len(p.Servers) > 0; {
	case joins && len(p.CA) == 0 && len(boot.Pins) == 0:
		return cli.Usagef("cannot make userdata: the machine could not verify its servers\ngive --ca sha256:…, or --cacert with their CA's certificates; `pulley ca show` prints the pins on the machine of `pulley serve`")
	case joins:
		if len(p.CA) == 0 {
			p.CA = boot.Pins
		}
		if c.Flags().Changed("endpoints") { // otherwise the join returns them
			p.Endpoints = boot.Endpoints
		}
		return nil
	case u.newToken:
		return cli.Usagef("cannot create a token: there is no server to join at\ngive --servers too, or `userdata: {servers: […]}` in the environment")
	case p.Node == "":
		return cli.Usagef("cannot make userdata: a machine claims its number by joining\ngive --servers, --ca and a token")
	case u.token+u.tokenFile != "" || len(p.CA) > 0:
		return cli.Usagef("cannot make userdata: there is no server to join at\ngive --servers too")
	case len(u.connection.Endpoints) == 0: // the default is this machine
		return cli.Usagef("cannot make userdata: the machine would reach neither etcd nor a server\ngive --endpoints or set PULLEY_ENDPOINTS; or, to join, give --servers, --ca and a token")
	}
	p.Endpoints, p.CACert = boot.Endpoints, boot.CACert
	return nil
}

// addToken adds the machine's join token. It creates a new token last, after all checks.
func (u *userdataOptions) addToken(c *cobra.Command, ref environments.Ref) (err error) {
	u.plan.Token = u.token
	if u.tokenFile != "" {
		u.plan.Token, err = readToken(u.env, u.tokenFile)
	}
	if !u.newToken || err != nil {
		return err
	}
	u.plan.Token = plans.PlaceholderToken
	if u.form == nocloud {
		_, err = u.seed()
	} else {
		_, err = userdata.Render(u.plan, userdata.Form(u.form))
	}
	if err != nil {
		return err
	}
	r := tokens.Request{Ref: ref, Lifetime: u.expires, By: u.env.User, Why: "userdata"}
	if r.Node = u.plan.Node; r.Node != "" {
		r.RoleIs = u.plan.Role
	} else {
		r.Role = u.plan.Role
	}
	if u.group == "" {
		r.Uses = 1
	}
	return u.withStore(c, func(ctx context.Context, s *store.Store) error {
		text, t, err := tokens.Create(ctx, s, r, u.env.Now())
		if err == nil {
			u.plan.Token = text
			fmt.Fprintf(u.env.Stderr, "token %s is valid until %s; anybody with this userdata can use it\n", t.ID, t.Expires.Format(time.RFC3339))
		}
		return err
	})
}

// seed returns the files of a NoCloud seed.
func (u *userdataOptions) seed() ([]userdata.SeedFile, error) {
	var network []byte
	if u.networkYML != "" {
		var err error
		if network, err = os.ReadFile(u.networkYML); err != nil {
			return nil, fmt.Errorf("cannot read the network configuration: %w", err)
		}
	}
	return userdata.Seed(u.plan, network)
}

// writeSeed writes a NoCloud seed with mode 0600, because it may contain a token.
func (u *userdataOptions) writeSeed() error {
	files, err := u.seed()
	if err != nil {
		return err
	}
	err = os.MkdirAll(u.to, 0o700)
	for _, f := range files {
		if err == nil {
			err = atomicfile.WriteShared(filepath.Join(u.to, f.Name), f.Text, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the seed to %s: %w", u.to, err)
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/store"
	"pulley/internal/trust"
	"pulley/userdata"
)

// nocloud is the form that is not one text but a folder or an ISO.
const nocloud = "nocloud"

// userdataOptions are what the command line says, before it becomes what a first boot is told.
type userdataOptions struct {
	firstBootFlags
	fleet cli.EnvironmentFlag

	role, group, hostname string
	token, tokenFile      string
	newToken              bool
	expires               time.Duration

	form                string
	to, iso, networkYML string
}

func newUserdata(o *options) *cobra.Command {
	u := userdataOptions{firstBootFlags: firstBootFlags{options: o}}
	cmd := &cobra.Command{
		Use:   "userdata NODE -e ENVIRONMENT",
		Short: "print the small payload that turns a bare machine into a node",
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
	f.StringVar(&u.form, "format", string(userdata.Script), "script, cloud-config, multipart or nocloud (a seed, with --to or --iso)")
	f.StringVar(&u.to, "to", "", "folder to write a NoCloud seed to")
	f.StringVar(&u.iso, "iso", "", "file to write a NoCloud seed to, as an ISO")
	f.StringVar(&u.networkYML, "network-config", "", "file with the machine's network, for the seed")
	u.add(f)
	f.StringVar(&u.token, "token", "", "token that the machine joins with")
	f.StringVar(&u.tokenFile, "token-file", "", "file that has the token; - is standard input")
	f.BoolVar(&u.newToken, "new-token", false, "make a token for exactly this: of one use, for a group of any number")
	f.DurationVar(&u.expires, "expires", defaultTokenLife, "how long the new token is good")
	f.StringVar(&u.hostname, "hostname", "", "name of the machine: node (as the node is called), keep, or a name (default: node)")
	return cmd
}

func (u *userdataOptions) run(c *cobra.Command, args []string) error {
	ref, err := u.fleet.Ref(u.env)
	if err == nil {
		ref, err = u.who(ref, args)
	}
	if err != nil {
		return err
	}
	for _, tell := range []func() error{
		u.checkForm,
		func() error { return u.stored(c, ref) },
		func() error { return u.reach(c) },
		func() error { return u.signers(ref) },
		u.agent,
		u.ownSteps,
	} {
		if err := tell(); err != nil {
			return err
		}
	}
	if err := u.letIn(c, ref); err != nil {
		return err
	}
	files, err := u.render()
	if err != nil {
		return err
	}
	if u.form == nocloud {
		return u.writeSeed(files)
	}
	_, err = u.env.Stdout.Write(files[0].Text)
	return err
}

// render returns what is handed out: one text, or the files of a seed. What the agent could not read is refused here, not on
// a machine's console.
func (u *userdataOptions) render() ([]userdata.SeedFile, error) {
	plan, err := userdata.Plan(u.told)
	if err != nil {
		return nil, err
	}
	if u.form == nocloud {
		files, err := u.seed()
		if err != nil {
			return nil, err
		}
		_, err = firstboot.ParsePlan("the plan of the first boot", plan)
		return files, err
	}
	text, err := userdata.Render(u.told, userdata.Form(u.form))
	if err != nil {
		return nil, err
	}
	_, err = firstboot.ParsePlan("the plan of the first boot", plan)
	return []userdata.SeedFile{{Text: text}}, err
}

// letIn finds the token that the machine joins with. A new one is the last thing to be made: what is wrong has been found.
func (u *userdataOptions) letIn(c *cobra.Command, ref environments.Ref) error {
	given := 0
	for _, is := range []bool{u.token != "", u.tokenFile != "", u.newToken} {
		if is {
			given++
		}
	}
	if given > 1 {
		return cli.Usagef("--token, --token-file and --new-token exclude each other")
	}
	if !u.newToken {
		var err error
		u.told.Token, err = u.tokenGiven()
		return err
	}
	if len(u.told.Servers) == 0 {
		return cli.Usagef("a new token is for a join: give --servers too, or `userdata: {servers: […]}` in the environment")
	}
	if u.expires <= 0 || u.expires > maxTokenLife {
		return cli.Usagef("cannot make a token that is good for %s: give --expires a time of at most %s", u.expires, maxTokenLife)
	}
	u.told.Token = placeholderToken
	if _, err := u.render(); err != nil {
		return err
	}
	of := tokenFlags{scope: scopeFlags{node: u.told.Node}}
	if u.told.Node == "" {
		of.scope.role = u.told.Role
	} else {
		of.member = u.told.Role
	}
	return u.withStore(c, func(ctx context.Context, s *store.Store) error {
		t, err := of.ofNodes(ctx, s, ref)
		if err != nil {
			return err
		}
		t.Created, t.By, t.Why = u.env.Now().UTC().Truncate(time.Second), u.env.User, "userdata"
		t.Expires = t.Created.Add(u.expires)
		if u.group == "" {
			t.Uses = 1
		}
		err = retryConflicts(func() (err error) {
			u.told.Token, t, err = s.Tokens.Create(ctx, t)
			return err
		})
		if err == nil {
			fmt.Fprintf(u.env.Stderr, "token %s is good until %s; whoever has this userdata can use it\n", t.ID, t.Expires.Format(time.RFC3339))
		}
		return err
	})
}

// signersOf refuses a list that the machine could not read, or that lets nobody sign for it: it would take nothing, and
// nobody would be there to see.
func (k *keyFiles) signersOf(ref environments.Ref, now time.Time) ([]byte, error) {
	signers, allowed, err := trust.ReadLists(k.signers, k.revoked)
	if err != nil {
		return nil, fmt.Errorf("cannot use %s: %w", k.signers, err)
	}
	if len(signers.MaySign(trust.Release, ref.Environment, now)) == 0 {
		return nil, fmt.Errorf("cannot use %s: nobody in %s may sign for %s\n`pulley key list --signers %s` shows who may, where and until when", k.signers, k.signers, ref.Environment, k.signers)
	}
	return allowed, nil
}

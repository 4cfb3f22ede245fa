package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// tokenFlags say whom a token is for.
type tokenFlags struct {
	fleet    cli.EnvironmentFlag
	scope    scopeFlags
	member   string // the role that --role gives the node: of userdata, which has both
	operator string
	as       string
	uses     int
	expires  time.Duration
	why      string
}

func newTokenCreate(o *options) *cobra.Command {
	var f tokenFlags
	cmd := &cobra.Command{
		Use:   "create -e ENVIRONMENT [--role ROLE | --node NODE], or create --operator NAME --as ROLE",
		Short: "Create a join token and print it once",
		Long: `create prints the token alone on standard output. With --node it is for exactly this node, which may then also join again
under a name that it had; with --role for nodes of one role, each of which gets the lowest free number unless it says which
it is; with neither for any node that the environment calls for. etcd has only a hash of it.

With --operator it is for a person: ` + "`pulley login`" + ` makes a key and a certificate with it. Only administrators make these.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley token create -e dev --node controller1
  pulley token create -e dev --node old1.example.com -m "a member of compute"
  pulley token create -e dev --role compute --uses 20 --expires 2h -m "rack 12"
  pulley token create --operator ann --as operator`,
		Args: arguments(0, 0, "takes no arguments; --node, --role or --operator say for whom"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			if f.operator != "" {
				return o.withStore(c, func(ctx context.Context, s *store.Store) error { return o.createToken(ctx, s, f, store.Token{}) })
			}
			return o.inFleet(c, f.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				t, err := f.ofNodes(ctx, s, ref)
				if err != nil {
					return err
				}
				return o.createToken(ctx, s, f, t)
			})
		},
	}
	flags := cmd.Flags()
	f.fleet.AddFlag(flags)
	f.scope.add(cmd, "the join")
	flags.StringVar(&f.operator, "operator", "", "for a person of this name, instead of nodes")
	flags.StringVar(&f.as, "as", "", "what the operator may do: viewer, operator or admin")
	flags.IntVar(&f.uses, "uses", 1, "how many may join with it; 0: any number")
	flags.DurationVar(&f.expires, "expires", defaultTokenLife, "for how long it counts, at most 2160h")
	flags.StringVarP(&f.why, "message", "m", "", "what it is for")
	return cmd
}

// check refuses what can't be meant, before etcd is asked.
func (f *tokenFlags) check(c *cobra.Command) error {
	ofNodes := f.scope.node != "" || f.scope.role != ""
	switch {
	case f.expires < time.Second || f.expires > maxTokenLife:
		return cli.Usagef("cannot make a token for %s: give --expires at least 1s and at most %s", f.expires, maxTokenLife)
	case f.uses < 0:
		return cli.Usagef("cannot make a token of %d uses: give --uses 1 or more, or 0 for any number", f.uses)
	case f.scope.node != "" && f.scope.role != "":
		return cli.Usagef("--role and --node exclude each other")
	case f.operator == "" && f.as != "":
		return cli.Usagef("--as says what an operator may do: give --operator NAME too")
	case f.operator != "" && (ofNodes || c.Flags().Changed("environment")):
		return cli.Usagef("a token is for an operator or for nodes: leave out --operator, or -e, --role and --node")
	case f.operator == "" && c.Flags().Changed("operator"):
		return cli.Usagef("--operator is empty")
	case f.operator == "":
		return nil
	}
	name := pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: f.operator, Incarnation: pki.NewIncarnation()}
	if err := name.Check(); err != nil {
		return cli.Usagef("cannot use %s as an operator's name: letters, digits and -_.@+ can be in it", quoted(f.operator))
	}
	if f.as == "" {
		return cli.Usagef("what may %s do? give --as viewer, operator or admin", f.operator)
	}
	if _, err := store.ParseOperatorRole(f.as); err != nil {
		return cli.Usagef("%v", err)
	}
	return nil
}

// ofNodes checks a token's role or node against the environment: one that nobody can use is a mistake.
func (f *tokenFlags) ofNodes(ctx context.Context, s *store.Store, ref environments.Ref) (store.Token, error) {
	e, _, err := s.Environments.MustSpec(ctx, ref)
	if err != nil {
		return store.Token{}, err
	}
	hosts, err := s.Fleet.Hosts(ctx, ref)
	if err != nil {
		return store.Token{}, err
	}
	known := map[string]bool{}
	for n := range hosts {
		known[n] = true
	}
	scope, err := f.scope.scope()
	if err == nil {
		err = change.CheckScope(e, known, scope)
	}
	if err != nil {
		return store.Token{}, err
	}
	is := hosts[scope.Node].Role
	if r, ok := e.RoleOf(scope.Node); ok {
		is = r.Name
	}
	if f.member != "" && f.member != is {
		return store.Token{}, fmt.Errorf("cannot make a token for %s as %s: in %s it is of role %s", scope.Node, quoted(f.member), ref, cli.Clean(is))
	}
	return store.Token{Environment: ref.String(), Role: scope.Role, Node: scope.Node}, nil
}

func (o *options) createToken(ctx context.Context, s *store.Store, f tokenFlags, t store.Token) error {
	now := o.env.Now().UTC().Truncate(time.Second)
	t.Operator, t.As = f.operator, store.OperatorRole(f.as)
	t.Uses, t.Created, t.Expires, t.By, t.Why = f.uses, now, now.Add(f.expires), o.env.User, agent.Prose(f.why)
	var text string
	err := change.Retry(func() (err error) {
		text, t, err = s.Tokens.Create(ctx, t)
		return err
	})
	if err != nil {
		if errors.Is(err, store.ErrConflict) {
			err = fmt.Errorf("%w\ntry again", err)
		}
		return err
	}
	uses := "any number of uses"
	if t.Uses > 0 {
		uses = cli.Count(t.Uses, "use")
	}
	fmt.Fprintf(o.env.Stderr, "token %s for %s: %s, until %s; it is shown this once\n", t.ID, cli.Clean(tokenFor(t)), uses, t.Expires.Format(time.RFC3339))
	if t.Operator != "" {
		fmt.Fprintf(o.env.Stderr, "they join with: pulley login --servers URL --ca FINGERPRINT --token TOKEN\n")
	} else {
		fmt.Fprintf(o.env.Stderr, "it goes into a machine's userdata: pulley userdata --token TOKEN; `pulley token revoke %s` ends it\n", t.ID)
	}
	fmt.Fprintln(o.env.Stdout, text)
	return nil
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/join/tokens"
	"pulley/internal/model"
)

// tokenCommand creates and lists join tokens.
type tokenCommand struct{ *options }

func newToken(o *options) *cobra.Command {
	return group("token", "Create, list and revoke join tokens", "", newTokenCreate(o), newTokenList(o), newTokenRevoke(o))
}

func newTokenCreate(o *options) *cobra.Command {
	var r tokens.Request
	var as string
	cmd := &cobra.Command{
		Use:   "create -e ENVIRONMENT [--role ROLE | --node NODE], or create --operator NAME --as ROLE",
		Short: "Create a join token and print it once",
		Long: `Print a new token on standard output. etcd stores only its hash. With --node, the token is for exactly this node, which may
also join again under its former name. With --role, it is for nodes of one role: each gets the lowest free number unless the
machine names itself. Without both, it is for any node of the environment.

With --operator, the token is for a person, who runs ` + "`pulley login`" + ` with it. Only administrators make these.`,
		Example: `  pulley token create -e dev --node controller1
  pulley token create -e dev --node old1.example.com -m "a member of compute"
  pulley token create -e dev --role compute --uses 20 --expires 2h -m "rack 12"
  pulley token create --operator ann --as operator`,
		Args: arguments(0, 0, "takes no arguments; --node, --role or --operator name the scope"),
		RunE: func(c *cobra.Command, _ []string) error {
			r.As, r.Why = access.OperatorRole(as), o.message
			if r.Operator == "" && c.Flags().Changed("operator") {
				return cli.Usagef("--operator is empty")
			}
			if r.Operator == "" || c.Flags().Changed("environment") {
				var err error
				if r.Ref, err = o.fleet.Ref(o.env); err != nil {
					return err
				}
			}
			if err := r.Check(); err != nil {
				return cli.Usagef("%v", err)
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				r.By = o.env.User
				text, t, err := tokens.Create(ctx, s, r, o.env.Now())
				if err != nil {
					return err
				}
				if o.dryRun {
					fmt.Fprintf(o.env.Stdout, "would create a token for %s\n", cli.Clean(tokens.Scope(t)))
					return nil
				}
				tokenCommand{o}.printToken(text, t)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	o.fleet.AddFlag(flags)
	flags.StringVar(&r.Role, "role", "", "for nodes of one role")
	flags.StringVar(&r.Node, "node", "", "for one node")
	flags.StringVar(&r.Operator, "operator", "", "for a person of this name, instead of nodes")
	flags.StringVar(&as, "as", "", "the operator's role: viewer, operator or admin")
	flags.IntVar(&r.Uses, "uses", 1, "number of machines that may join with it; 0 is unlimited")
	cli.DurationVar(flags, &r.Lifetime, "expires", tokens.DefaultLifetime, "lifetime, at most 90d")
	o.addMessage(cmd, "reason, shown by token list")
	o.addDryRun(cmd)
	return cmd
}

func (o tokenCommand) printToken(text string, t access.Token) {
	uses := "any number of uses"
	if t.Uses > 0 {
		uses = cli.Count(t.Uses, "use")
	}
	fmt.Fprintf(o.env.Stderr, "token %s for %s: %s, until %s; it is printed only once\n", t.ID, cli.Clean(tokens.Scope(t)), uses, t.Expires.Format(time.RFC3339))
	servers, pins := "URL", "FINGERPRINT"
	if known := o.servers(); len(known) > 0 {
		servers = strings.Join(known, ",")
	}
	if c, err := o.connectionOnly(); err == nil && len(c.Pins) > 0 {
		pins = strings.Join(c.Pins, ",")
	}
	if t.Operator != "" {
		fmt.Fprintf(o.env.Stderr, "the operator runs: pulley login --servers %s --ca %s --token TOKEN\n", servers, pins)
	} else {
		fmt.Fprintf(o.env.Stderr, "put it into a machine's userdata: pulley userdata --token TOKEN; to end it: pulley token revoke %s\n"+
			"or run on the machine: PULLEY_TOKEN=TOKEN pulley-agent bootstrap --servers %s --ca %s\n", t.ID, servers, pins)
	}
	fmt.Fprintln(o.env.Stdout, text)
}

// shownToken is one token of `pulley token list -o json`; docs/json.md describes it.
type shownToken struct {
	ID          string              `json:"id"`
	State       tokens.State        `json:"state"`
	Environment string              `json:"environment,omitempty"`
	Role        string              `json:"role,omitempty"`
	Node        string              `json:"node,omitempty"`
	Operator    string              `json:"operator,omitempty"`
	As          access.OperatorRole `json:"as,omitempty"`
	Uses        int                 `json:"uses"`
	Used        int                 `json:"used"`
	Created     time.Time           `json:"created"`
	Expires     time.Time           `json:"expires"`
	By          string              `json:"by"`
	Why         string              `json:"why,omitempty"`
	Revoked     *access.Revoked     `json:"revoked,omitempty"`
}

func newTokenList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List join tokens with their scope and state", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withEtcd(c, tokenCommand{o}.listTokens) },
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o tokenCommand) listTokens(ctx context.Context, s *etcd.DB) error {
	all, damaged, err := access.TokensIn(s).List(ctx)
	if err != nil {
		return err
	}
	o.warn(damaged)
	shown := make([]shownToken, 0, len(all))
	for _, t := range all {
		shown = append(shown, shownToken{t.ID, tokens.StateOf(t, o.env.Now()), t.Environment, t.Role, t.Node, t.Operator, t.As, t.Uses, t.Used,
			t.Created, t.Expires, t.By, string(t.Why), t.Revoked})
	}
	return o.out.Print(o.env, shown, func(table *cli.Table) error {
		table.Row("ID", "FOR", "STATE", "USED", "EXPIRES", "BY", "WHY")
		for i, t := range all {
			used := fmt.Sprintf("%d of %d", t.Used, t.Uses)
			if t.Uses == 0 {
				used = fmt.Sprintf("%d", t.Used)
			}
			why := string(t.Why)
			if t.Revoked != nil && t.Revoked.Why != "" {
				why = "revoked: " + string(t.Revoked.Why)
			}
			table.Row(t.ID, tokens.Scope(t), strings.ReplaceAll(string(shown[i].State), "_", " "), used, t.Expires.UTC().Format(time.RFC3339), t.By, why)
		}
		return nil
	})
}

func newTokenRevoke(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a join token; nodes that joined with it stay", Args: arguments(1, 1, "takes the id of one token"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			id := args[0]
			if of, _, err := access.ParseToken(id); err == nil { // the complete token was given
				id = of
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				question := fmt.Sprintf("No machine and no operator can join with token %s any more.\nRevoke it?", cli.Clean(id))
				if err := o.confirm(ctx, question); err != nil {
					return err
				}
				t, err := access.TokensIn(s).Revoke(ctx, id, access.Revoked{At: o.env.Now().UTC().Truncate(time.Second), By: o.env.User, Why: model.Prose(o.message)})
				if err != nil {
					return fmt.Errorf("%w\n`pulley token list` lists them", err)
				}
				fmt.Fprintf(o.env.Stdout, "token %s for %s is revoked; used %s\n", t.ID, cli.Clean(tokens.Scope(t)), cli.Count(t.Used, "time"))
				return nil
			})
		},
	}
	o.addMessage(cmd, "reason, shown by token list")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

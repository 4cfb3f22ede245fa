package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newToken(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Create, list and revoke join tokens", Args: arguments(0, 0, "needs a verb: create, list or revoke"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newTokenCreate(o), newTokenList(o), newTokenRevoke(o))
	return cmd
}

// shownToken is one token of `pulley token list -o json`; docs/json.md describes it.
type shownToken struct {
	ID          string             `json:"id"`
	State       string             `json:"state"`
	Environment string             `json:"environment,omitempty"`
	Role        string             `json:"role,omitempty"`
	Node        string             `json:"node,omitempty"`
	Operator    string             `json:"operator,omitempty"`
	As          store.OperatorRole `json:"as,omitempty"`
	Uses        int                `json:"uses"`
	Used        int                `json:"used"`
	Created     time.Time          `json:"created"`
	Expires     time.Time          `json:"expires"`
	By          string             `json:"by"`
	Why         string             `json:"why,omitempty"`
	Revoked     *store.Revoked     `json:"revoked,omitempty"`
}

// tokenState is one word for whether a token is good for anything.
func tokenState(t store.Token, now time.Time) string {
	switch {
	case t.Revoked != nil:
		return "revoked"
	case !now.Before(t.Expires):
		return "expired"
	case t.UsedUp():
		return "used up"
	}
	return "valid"
}

// tokenFor is whom a token is for, in words.
func tokenFor(t store.Token) string {
	switch {
	case t.Operator != "":
		return "operator " + t.Operator + " as " + string(t.As)
	case t.Node != "":
		return "node " + t.Node + " of " + t.Environment
	case t.Role != "":
		return "role " + t.Role + " of " + t.Environment
	}
	return "any node of " + t.Environment
}

func newTokenList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List join tokens with their scope and validity", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.withStore(c, o.tokens) },
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) tokens(ctx context.Context, s *store.Store) error {
	all, damaged, err := s.Tokens.List(ctx)
	if err != nil {
		return err
	}
	for _, d := range damaged {
		cli.Complain(o.env, program, fmt.Errorf("warning: %s", d))
	}
	shown := make([]shownToken, 0, len(all))
	for _, t := range all {
		shown = append(shown, shownToken{t.ID, tokenState(t, o.env.Now()), t.Environment, t.Role, t.Node, t.Operator, t.As, t.Uses, t.Used,
			t.Created, t.Expires, t.By, string(t.Why), t.Revoked})
	}
	return o.out.Print(o.env, shown, func(table *cli.Table) error {
		table.Row("ID", "FOR", "STATE", "USED", "EXPIRES", "BY", "WHY")
		for i, t := range all {
			used := fmt.Sprintf("%d of %d", t.Used, t.Uses)
			if t.Uses == 0 {
				used = fmt.Sprintf("%d", t.Used)
			}
			why := t.Why
			if t.Revoked != nil && t.Revoked.Why != "" {
				why = "revoked: " + t.Revoked.Why
			}
			table.Row(t.ID, tokenFor(t), shown[i].State, used, t.Expires.UTC().Format(time.RFC3339), t.By, string(why))
		}
		return nil
	})
}

func newTokenRevoke(o *options) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a join token at once; nodes that joined with it stay", Args: arguments(1, 1, "takes the id of one token"),
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			if whole, _, err := store.ParseToken(id); err == nil { // all of the token was given
				id = whole
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				t, err := s.Tokens.Revoke(ctx, id, store.Revoked{At: o.env.Now().UTC().Truncate(time.Second), By: o.env.User, Why: agent.Prose(why)})
				if err != nil {
					return fmt.Errorf("%w\n`pulley token list` lists them", err)
				}
				fmt.Fprintf(o.env.Stdout, "token %s for %s is revoked; used %s\n", t.ID, cli.Clean(tokenFor(t)), cli.Count(t.Used, "time"))
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&why, "message", "m", "", "why")
	return cmd
}

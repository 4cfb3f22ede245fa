package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/pki"
)

// shownCA is what `pulley ca show -o json` prints; docs/json.md describes it.
type shownCA struct {
	Authorities []shownAuthority `json:"authorities"`
	Others      *int             `json:"others"`
	Rotate      []string         `json:"before_rotating"`
	Retire      []string         `json:"before_retiring"`
}

type shownAuthority struct {
	Part        pki.Part  `json:"part"`
	Fingerprint string    `json:"fingerprint"`
	Until       time.Time `json:"until"`
	Key         bool      `json:"key"`
	Nodes       *int      `json:"nodes"`
	Operators   *int      `json:"operators"`
}

func newCAShow(o *options) *cobra.Command {
	f := caFolder{options: o}
	cmd := &cobra.Command{
		Use: "show", Short: "show the CAs that are trusted, and who has certificates of which", Args: arguments(0, 0, "takes no arguments; --data-dir says where the CA is"),
		Long: `show tells the fingerprints by which new machines know the fleet, how long each CA is valid, and what a rotation would
have to wait for. Without an answer from etcd it shows what the folder says.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Example: `  pulley ca show --data-dir pulley-data`,
		RunE: func(c *cobra.Command, _ []string) error {
			ca, err := f.open()
			if err != nil {
				return err
			}
			n, err := f.census(c.Context(), ca)
			if err != nil {
				return err
			}
			shown := show(ca, n)
			if err := o.out.Print(o.env, shown, func(t *cli.Table) error { shown.table(t); return nil }); err != nil || !o.out.ForPeople() {
				return err
			}
			shown.explain(f, n)
			return nil
		},
	}
	f.add(cmd)
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func show(ca *pki.CA, n census) shownCA {
	shown := shownCA{Authorities: []shownAuthority{}, Rotate: n.beforeRotating(ca), Retire: n.beforeRetiring(ca)}
	others := 0
	for _, who := range n.holders {
		others += len(who)
	}
	for _, a := range ca.Authorities() {
		s := shownAuthority{Part: a.Part, Fingerprint: a.Fingerprint, Until: a.Certificate.NotAfter, Key: a.KeyAtHand}
		if n.holders != nil {
			nodes, operators := n.nodes[a.Fingerprint], n.operators[a.Fingerprint]
			s.Nodes, s.Operators = &nodes, &operators
			others -= nodes + operators
		}
		shown.Authorities = append(shown.Authorities, s)
	}
	if n.holders != nil {
		shown.Others = &others
	}
	shown.Rotate, shown.Retire = append([]string{}, shown.Rotate...), append([]string{}, shown.Retire...) // never null
	return shown
}

func (s shownCA) table(t *cli.Table) {
	t.Row("CA", "FINGERPRINT", "UNTIL", "KEY", "NODES", "OPERATORS")
	for _, a := range s.Authorities {
		t.Row(string(a.Part), a.Fingerprint, a.Until.Format(time.DateOnly), keyOf(a), number(a.Nodes), number(a.Operators))
	}
}

func keyOf(a shownAuthority) string {
	switch {
	case a.Key:
		return "at hand"
	case a.Part == pki.PartPrevious:
		return "-"
	}
	return "missing"
}

func number(n *int) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(*n)
}

// explain tells people what the table does not.
func (s shownCA) explain(f caFolder, n census) {
	w := f.env.Stdout
	if n.problem != nil {
		cli.Complain(f.env, program, fmt.Errorf("cannot ask etcd who has which certificate: %w", n.problem))
		return
	}
	if s.Others != nil && *s.Others > 0 {
		fmt.Fprintf(w, "%s a certificate of a CA that is not trusted any more, and can't come in\n", identitiesHave(*s.Others))
	}
	for _, reason := range s.Retire {
		fmt.Fprintf(w, "before `pulley ca retire`: %s\n", cli.Clean(reason))
	}
	for _, reason := range s.Rotate {
		fmt.Fprintf(w, "before `pulley ca rotate`: %s\n", cli.Clean(reason))
	}
}

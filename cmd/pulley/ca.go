package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/serve/member"
)

func newCA(o *options) *cobra.Command {
	return group("ca", "Show, rotate and retire the CA of a fleet", `Work on the CA in the data folder of pulley serve, on the machine of pulley serve. A running serve notices the changes.

All machines trust two CAs from the first day: the current CA signs, and the next CA replaces it at a rotation. After a
rotation, all machines trust the previous CA until it is retired.

The verbs read the certificates in use from etcd. By default they use the identity and the CA of the same folder.`, newCAShow(o), newCARotate(o), newCARetire(o), newCAAdmin(o))
}

func newCAAdmin(o *options) *cobra.Command {
	f := caFlags{options: o}
	cmd := &cobra.Command{
		Use: "admin", Short: "Create the identity of the first administrator again", Args: arguments(0, 0, "takes no arguments; --data-dir names the data folder"),
		Long: `Create the identity of the administrator "admin" again, in pki/admin.pem of the data folder: because the file is lost,
expired or stolen. Copies of the former identity are no longer valid. The command connects as pulley serve. It asks for
confirmation: in scripts, use --yes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			if _, err := fleetca.OpenExisting(f.dataDir, f.secure.ca(o.env.Now)); err != nil {
				return err
			}
			o.connectTo(f.dataDir)
			certs, err := fleetca.Open(f.dataDir, o.connection.Prefix, hostname(), false, f.secure.ca(o.env.Now))
			if err != nil {
				return err
			}
			// Not the operator's own certificate from the variables: it may be the one that is lost.
			o.connection.CACert, o.connection.Cert, o.connection.Key = certs.Bundle(), certs.Identity(), certs.Identity()
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if err := f.previewAdmin(ctx, s, fleetca.AdminFile(f.dataDir)); err != nil || o.dryRun {
					return err
				}
				if err := o.confirm(ctx, "Create it?"); err != nil {
					return err
				}
				file, err := certs.RemakeAdmin(ctx, s, o.env.User)
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "the identity of administrator \"admin\" is %s; copies of the former one are not valid any more\n", file)
				return nil
			})
		},
	}
	f.add(cmd)
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

// previewAdmin prints what a new identity of the administrator ends.
func (f *caFlags) previewAdmin(ctx context.Context, s *etcd.DB, file string) error {
	old, _, err := access.IdentitiesIn(s).Operator(ctx, fleetca.AdminName)
	if err != nil {
		return err
	}
	if !f.dryRun && f.yes {
		return nil
	}
	fmt.Fprintf(f.env.Stdout, "would create the identity of administrator %q in %s\n", fleetca.AdminName, file)
	if old.Live() {
		fmt.Fprintf(f.env.Stdout, "etcd would refuse copies of the former one, issued at %s\n", old.Issued.UTC().Format(time.RFC3339))
	}
	return nil
}

// caFlags select the CA of a verb.
type caFlags struct {
	*options
	dataDir string
	secure  secureFlags
}

func (f *caFlags) add(c *cobra.Command) {
	f.addDataDir(c, &f.dataDir, "data folder of pulley serve")
	f.secure.addCA(c.Flags())
}

// open opens the CA and lists its certificates in use.
func (f *caFlags) open(ctx context.Context) (*pki.CA, fleetca.Census, error) {
	ca, err := fleetca.OpenExisting(f.dataDir, f.secure.ca(f.env.Now))
	if err != nil {
		return nil, fleetca.Census{}, err
	}
	f.connectTo(f.dataDir)
	if err := f.connection.Check(); err != nil {
		return nil, fleetca.Census{}, err
	}
	config := fleetca.Connection(f.dataDir, f.connection.Config(), "")
	return ca, fleetca.Take(ctx, config, ca, fleetca.AdminFile(f.dataDir), f.env.Now()), nil
}

// shownCA is the output of `pulley ca show -o json`. docs/json.md describes it.
type shownCA struct {
	Authorities []shownAuthority  `json:"authorities"`
	Others      *int              `json:"others"`
	Rotate      []fleetca.Blocker `json:"before_rotating"`
	Retire      []fleetca.Blocker `json:"before_retiring"`
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
	f := caFlags{options: o}
	cmd := &cobra.Command{
		Use: "show", Short: "Show the trusted CAs and the holders of their certificates", Args: arguments(0, 0, "takes no arguments; --data-dir names the data folder"),
		Long: `Show the fingerprints of the CAs for new machines, the end of each CA, and what blocks a rotation. If etcd does not
answer, show the contents of the folder only.`,
		RunE: func(c *cobra.Command, _ []string) error {
			ca, n, err := f.open(c.Context())
			if err != nil {
				return err
			}
			shown := show(ca, n)
			if err := o.out.Print(o.env, shown, func(t *cli.Table) error { shown.table(t); return nil }); err != nil || !o.out.ForPeople() {
				return err
			}
			f.printBlockers(shown, n)
			return nil
		},
	}
	f.add(cmd)
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func show(ca *pki.CA, n fleetca.Census) shownCA {
	shown := shownCA{Authorities: []shownAuthority{}, Rotate: n.BeforeRotating(ca), Retire: n.BeforeRetiring(ca)}
	others := 0
	for _, who := range n.Holders {
		others += len(who)
	}
	for _, a := range ca.Authorities() {
		s := shownAuthority{Part: a.Part, Fingerprint: a.Fingerprint, Until: a.Certificate.NotAfter, Key: a.KeyAtHand}
		if n.Holders != nil {
			nodes, operators := n.Nodes[a.Fingerprint], n.Operators[a.Fingerprint]
			s.Nodes, s.Operators = &nodes, &operators
			others -= nodes + operators
		}
		shown.Authorities = append(shown.Authorities, s)
	}
	if n.Holders != nil {
		shown.Others = &others
	}
	return shown
}

func (s shownCA) table(t *cli.Table) {
	number := func(n *int) string {
		if n == nil {
			return "?"
		}
		return strconv.Itoa(*n)
	}
	t.Row("CA", "FINGERPRINT", "UNTIL", "KEY", "NODES", "OPERATORS")
	for _, a := range s.Authorities {
		key := "missing"
		if a.Key {
			key = "present"
		} else if a.Part == pki.PartPrevious {
			key = "-"
		}
		t.Row(string(a.Part), a.Fingerprint, a.Until.Format(time.DateOnly), key, number(a.Nodes), number(a.Operators))
	}
}

func (f *caFlags) printBlockers(s shownCA, n fleetca.Census) {
	if n.Problem != nil {
		cli.Complain(f.env, program, fmt.Errorf("cannot list the certificates in use: %w", n.Problem))
		return
	}
	if s.Others != nil && *s.Others > 0 {
		fmt.Fprintf(f.env.Stdout, "certificates of a CA that is no longer trusted: %d\n", *s.Others)
	}
	for _, b := range s.Retire {
		fmt.Fprintf(f.env.Stdout, "before `pulley ca retire`: %s\n", cli.Clean(b.Sentence()))
	}
	for _, b := range s.Rotate {
		fmt.Fprintf(f.env.Stdout, "before `pulley ca rotate`: %s\n", cli.Clean(b.Sentence()))
	}
}

func newCARotate(o *options) *cobra.Command {
	f := caFlags{options: o}
	var force, stolen bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "Sign with the next CA from now on", Args: arguments(0, 0, "takes no arguments; --data-dir names the data folder"),
		Long: `Make the next CA the current one, and create a new next CA. The former CA stays trusted. Servers get certificates of the
new CA within seconds. Nodes renew by themselves within hours.

The command refuses if a node or an operator would lose access: their certificates are older than the next CA, or etcd was
started before the next CA existed. With --force it rotates anyway. Nodes and operators that lose access must join again.

With --stolen the former CA is no longer trusted: the thief of its key must not get a certificate of the new CA. Stop serve
first. All nodes and operators must join again. If next.key may be stolen too, run the command twice.

--stolen and --force ask for confirmation: in scripts, use --yes.`,
		Example: `  pulley ca rotate
  pulley ca rotate --stolen`,
		RunE: func(c *cobra.Command, _ []string) error {
			if stolen || force {
				if err := o.mayConfirm(); err != nil {
					return err
				}
			}
			if stolen {
				return f.replaceStolen(c.Context())
			}
			ca, n, err := f.open(c.Context())
			if err != nil {
				return err
			}
			if err := f.permitted("rotate the CA", force, n.BeforeRotating(ca)); err != nil {
				return err
			}
			if o.dryRun {
				return f.previewRotation(ca, force)
			}
			if force {
				if err := ca.MayRotate(force); err != nil {
					return err
				}
				if err := o.confirm(c.Context(), "Nodes and operators lose access if their certificates are older than the next CA.\nRotate the CA?"); err != nil {
					return err
				}
			}
			if err := ca.Rotate(force); err != nil {
				return err
			}
			f.printSigner(ca)
			fmt.Fprintln(o.env.Stdout, "restart `pulley serve` before the next rotation: etcd reads new CAs only at its start")
			fmt.Fprintln(o.env.Stdout, "run `pulley ca retire` once `pulley ca show` lists no certificate of the former CA")
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "rotate even if nodes or operators lose access, or etcd does not answer")
	cmd.Flags().BoolVar(&stolen, "stolen", false, "remove the trust in the current CA, whose key was stolen")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

// previewRotation prints which CA would sign after a rotation.
func (f *caFlags) previewRotation(ca *pki.CA, force bool) error {
	if err := ca.MayRotate(force); err != nil {
		return err
	}
	f.announceDryRun()
	fmt.Fprintf(f.env.Stdout, "%s would sign from now on, and a new next CA would be created\n", fleetca.Part(ca, pki.PartNext).Fingerprint)
	if previous := fleetca.Part(ca, pki.PartPrevious); previous != nil {
		fmt.Fprintf(f.env.Stdout, "%s would no longer be trusted\n", previous.Fingerprint)
	}
	return nil
}

func (f *caFlags) printSigner(ca *pki.CA) {
	fmt.Fprintf(f.env.Stdout, "%s signs from now on; the fingerprints for new machines are %s\n", ca.Fingerprints()[0], strings.Join(ca.Fingerprints(), " and "))
}

func (f *caFlags) replaceStolen(ctx context.Context) (err error) {
	ca, err := fleetca.OpenExisting(f.dataDir, f.secure.ca(f.env.Now))
	if err != nil {
		return err
	}
	release, err := member.KeepOut(f.dataDir)
	if err != nil {
		return fmt.Errorf("cannot replace a stolen CA: %w\nstop it first: until its restart, etcd accepts every certificate of the thief", err)
	}
	defer func() { err = errors.Join(err, release()) }()
	if f.dryRun {
		if err = f.previewRotation(ca, true); err == nil {
			fmt.Fprintf(f.env.Stdout, "%s would no longer be trusted, and all nodes and operators would have to join again\n", ca.Fingerprints()[0])
		}
		return err
	}
	question := fmt.Sprintf("%s will no longer be trusted, and all nodes and operators must join again.\nReplace the CA?", ca.Fingerprints()[0])
	if err := f.confirm(ctx, question); err != nil {
		return err
	}
	stolen, err := fleetca.ReplaceStolen(ca)
	if err != nil {
		return err
	}
	fmt.Fprintf(f.env.Stdout, "%s is no longer trusted here\n", stolen)
	f.printSigner(ca)
	fmt.Fprintln(f.env.Stdout, "if next.key may be stolen too, run this again; then start `pulley serve` on loopback only, and revoke all tokens first")
	return nil
}

func newCARetire(o *options) *cobra.Command {
	f := caFlags{options: o}
	var force bool
	cmd := &cobra.Command{
		Use: "retire", Short: "End the trust in the previous CA", Args: arguments(0, 0, "takes no arguments; --data-dir names the data folder"),
		Long: `Remove the previous CA from the trusted CAs. The HTTPS listener of serve follows at once, etcd at its next start, and
each node at its next renewal. The command refuses while a node or an operator has a certificate of that CA, except with --force.
It asks for confirmation: in scripts, use --yes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			ca, n, err := f.open(c.Context())
			if err != nil {
				return err
			}
			previous := fleetca.Part(ca, pki.PartPrevious)
			if previous == nil {
				fmt.Fprintln(o.env.Stdout, "there is no previous CA: nothing to retire")
				return nil
			}
			if err := f.permitted("retire the previous CA", force, n.BeforeRetiring(ca)); err != nil {
				return err
			}
			if o.dryRun {
				o.announceDryRun()
				fmt.Fprintf(o.env.Stdout, "%s would no longer be trusted\n", previous.Fingerprint)
				return nil
			}
			question := fmt.Sprintf("%s will no longer be trusted.\nRetire it?", previous.Fingerprint)
			if err := o.confirm(c.Context(), question); err != nil {
				return err
			}
			if err := ca.Retire(); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s is no longer trusted; etcd follows when `pulley serve` restarts\n", previous.Fingerprint)
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "retire even if nodes or operators lose access, or etcd does not answer")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

// permitted returns nil if nothing blocks an action, or if the action is forced.
func (f *caFlags) permitted(action string, force bool, blockers []fleetca.Blocker) error {
	var all []string
	for _, b := range blockers {
		all = append(all, b.Sentence())
		if force {
			cli.Complain(f.env, program, errors.New("forced: "+b.Sentence()))
		}
	}
	if force || len(all) == 0 {
		return nil
	}
	return fmt.Errorf("cannot %s: %s\nuse --force to do it anyway", action, strings.Join(all, "\n"))
}

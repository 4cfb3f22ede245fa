package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/nodes"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/specs"
)

type nodesOptions struct {
	*options
	selected selectFlags
}

func newNodes(o *options) *cobra.Command {
	n := nodesOptions{options: o}
	cmd := &cobra.Command{
		Use: "nodes -e ENVIRONMENT", Short: "List the nodes of an environment", Args: arguments(0, 0, "takes no arguments, or the verb add, remove, run, unlock, pause or resume"),
		Long: `nodes lists the nodes of the environment file, the registered nodes, and every machine in its first boot. --role, --node,
--state and --where select some of them. On a terminal, nodes lists at most ` + strconv.Itoa(rowsOnTerminal) + ` nodes, those that
are not registered or have a note first.`,
		Example: `  pulley nodes -e production --role compute
  pulley nodes -e production --state missing
  pulley nodes -e production --where 'os.family == "Debian" && release != "1.5.0"'`,
		RunE: func(c *cobra.Command, _ []string) error {
			sel, err := n.selected.value()
			if err != nil {
				return err
			}
			if !c.Flags().Changed("limit") && n.env.Terminal && n.out.ForPeople() {
				n.selected.limit = rowsOnTerminal
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error { return n.list(ctx, s, ref, sel) })
		},
	}
	o.fleet.AddFlag(cmd.PersistentFlags())
	n.selected.add(cmd)
	n.selected.addState(cmd)
	n.selected.addLimit(cmd, 0, "number of nodes; 0 for all (default: "+strconv.Itoa(rowsOnTerminal)+" on a terminal, else all)")
	o.out.AddFlags(cmd.Flags())
	cmd.AddCommand(newNodesAdd(o), newNodesRemove(o), newNodesRun(o), newNodesUnlock(o), newNodesPause(o), newNodesResume(o))
	return cmd
}

func (n nodesOptions) list(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection) error {
	r, err := fleet.ReadHosts(ctx, s, ref, sel, n.env.Now())
	if err != nil {
		return err
	}
	n.warn(slices.Concat(r.Damaged, r.Notes))
	now := n.env.Now()
	if r.Paused != nil {
		n.warn([]string{fleet.PauseSentence(ref, *r.Paused, now)})
	}
	all, left := fleet.LimitHosts(fleet.Hosts(r, now), n.selected.limit, now)
	err = n.out.Print(n.env, all, func(t *cli.Table) error {
		t.Row("NODE", "ROLE", "REGISTERED", "ADDRESSES", "MACHINE ID", "FIRST BOOT", "NOTE")
		t.Spare("MACHINE ID", "ADDRESSES")
		for _, h := range all {
			since := "not yet"
			if h.Registered {
				since = cli.Ago(now, h.At)
			}
			t.Row(h.Node, h.Role, since, strings.Join(h.Addresses, " "), fmt.Sprintf("%.8s", h.MachineID), h.FirstBoot.Cell(now), h.Note(now))
		}
		return nil
	})
	if n.out.ForPeople() {
		cli.More(n.env, left, "node", "nodes")
	}
	return err
}

func newNodesAdd(o *options) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use: "add NODE -e ENVIRONMENT", Short: "Add a node to the host list by hand, as its bootstrap would", Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
				if err != nil {
					return err
				}
				h, err := nodes.NewHost(e, args[0], role)
				if err != nil {
					return err
				}
				joined, err := nodes.MayAdd(ctx, access.IdentitiesIn(s), ref, h.Node)
				if err != nil {
					return err
				}
				h.At, h.By = o.env.Now().UTC(), o.env.User
				if err := fleet.In(s).Register(ctx, ref.String(), h); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "added %s to the host list of %s, role %s\n", h.Node, ref, h.Role)
				if joined || o.dryRun {
					return nil
				}
				secured, err := access.In(s).AuthEnabled(ctx)
				if secured {
					fmt.Fprintf(o.env.Stderr, "%s: note: etcd refuses it until it joins: `pulley userdata %s -e %s --new-token` for a new machine, `pulley token create --node %[2]s -e %[3]s` for one that runs\n", program, h.Node, ref)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "role of a machine whose name does not contain it")
	o.addDryRun(cmd)
	return cmd
}

func newNodesRemove(o *options) *cobra.Command {
	var forget bool
	cmd := &cobra.Command{
		Use: "remove NODE -e ENVIRONMENT", Short: "Remove a node from the fleet and reject its certificate from now on",
		Long: `remove makes etcd reject the node's certificate from the next request on. Then it deletes the node's entry in the host
list, its holds, its own target, its assignment and its first boot. Its last status and its runs stay until --forget. With
--forget the command also works while etcd is full, and makes room: after a flood, one command removes the node and its data.

Where the node could read secrets, remove makes new recipients for them and encrypts them again, as ` + "`pulley secret rotate`" + ` does,
so that its identity decrypts no later secret. Nodes with allowed signers need --sign-key for that. A rotation that fails ends the
command with exit 1, after the removal, and with the command that repeats it.

remove asks for confirmation. In scripts, use --yes.

With etcd authentication this needs an administrator. A removed node can join again only with a token that is created for
it afterwards: ` + "`pulley token create --node NODE`" + `.`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.mayConfirm(); err != nil {
				return err
			}
			if err := o.sign.check(o.env); err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				return o.removeNode(ctx, s, ref, args[0], access.Removal{At: o.env.Now().UTC(), By: o.env.User, Why: model.Prose(o.message), Rotate: true}, forget)
			})
		},
	}
	cmd.Flags().BoolVar(&forget, "forget", false, "also delete its last status and its runs")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason, shown to the machine if it returns")
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	return cmd
}

func (o *options) removeNode(ctx context.Context, s *etcd.DB, ref model.Ref, node string, removal access.Removal, forget bool) error {
	identity, _, err := access.IdentitiesIn(s).Get(ctx, ref, node)
	if err != nil {
		return err
	}
	if err := o.confirm(ctx, removalOf(ref, node, identity, forget)); err != nil {
		return err
	}
	rest := "its status and runs are kept"
	if forget {
		f, err := access.JoinsIn(s).ForgetNode(ctx, ref, node, removal, records.Left)
		if err != nil {
			return err
		}
		rest = "its status and runs are deleted"
		if f.Room {
			rest += fmt.Sprintf("; etcd was full and has %s more room now", cli.Bytes(f.Bytes))
		}
	} else if err := access.JoinsIn(s).RemoveNode(ctx, ref, node, removal, records.Left); err != nil {
		if errors.Is(err, etcd.ErrFull) {
			err = fmt.Errorf("%w\nits certificate is rejected already; run `pulley nodes remove %s -e %s --forget` to make room and finish", err, node, ref)
		}
		return err
	}
	if identity.Live() {
		rest = "its certificate is rejected; " + rest
	}
	fmt.Fprintf(o.env.Stdout, "removed %s from the host list of %s; %s\n", node, ref, rest)
	if c, err := access.JoinsIn(s).Cleanup(ctx, ref, node); err == nil && c.Unread() {
		fmt.Fprintf(o.env.Stdout, "the environment %s cannot be read: pulley serve removes %s from its Puppet servers when it can; `pulley doctor` lists it\n", ref, c.Certname)
	} else if err == nil && c != nil {
		fmt.Fprintf(o.env.Stdout, "pulley serve removes %s from %s; `pulley doctor` lists what is left\n", c.Certname, cli.Count(len(c.Steps), "Puppet server"))
	}
	r, err := records.In(s).Record(ctx, ref, node)
	if err == nil && r != nil {
		fmt.Fprintf(o.env.Stdout, "its machine %s still exists: run `pulley env plan` to see the plan for it\n", cli.Clean(r.Name))
	}
	return errors.Join(err, o.rotateAfter(ctx, s, ref, node, identity))
}

// removalOf asks for the removal of a node, with its effects.
func removalOf(ref model.Ref, node string, identity *access.Identity, forget bool) string {
	effects := "its entry in the host list, its holds and its own target are deleted"
	if identity.Live() {
		effects = "its certificate is rejected, and " + effects
	}
	if forget {
		effects += ", also its status and its runs"
	}
	return fmt.Sprintf("%s leaves %s: %s.\nRemove it?", cli.Clean(node), ref, effects)
}

func newNodesRun(o *options) *cobra.Command {
	var cancelRetirement bool
	var many manyRuns
	cmd := &cobra.Command{
		Use: "run [NODE] -e ENVIRONMENT", Short: "Request one Puppet run of a node, or of many, at the next tick",
		Long: `run writes a request into the node's entry in the host list. The node reads it at its next tick and runs Puppet once,
although no run is due. Holds, the gate and retry limits still apply: a node that may not run answers with the
reason. Nothing connects to the node. With --wait the command prints the answer.

A newer request replaces an older one. A node that is being retired accepts no other request: --cancel-retirement ends its
retirement and the hold of that retirement first. It is refused during an apply. The next apply retires the node again
unless the environment calls for it.

Without NODE, run is a loop over the nodes of --role, --node or --where, or over all nodes. It keeps --concurrency requests open until
each node answered. A node in another run comes later; a node that is silent gets no request; a node that does not answer before its
--deadline loses its request. The loop ends with a summary. It asks for confirmation: in scripts, use --yes. Ctrl-C ends the loop: the
requests that it names stay. To run nodes in the order of their dependencies, use ` + "`pulley job run`" + `.

EXIT STATUS
  0 requested, or with --wait done; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 the node refused, or its run
  failed, 5 its time passed; without NODE, 0 all nodes ran, 4 some did not, or their runs failed, 1 also interrupted`,
		Args: arguments(0, 1, "takes at most one node"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := many.check(c, args); err != nil {
				return err
			}
			if len(args) == 0 {
				return o.runMany(c, many)
			}
			if o.dryRun && o.wait.limit > 0 {
				return cli.Usagef("--dry-run excludes --wait")
			}
			if err := o.wait.check(c); err != nil {
				return err
			}
			wait := o.wait.limit
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				node, r := args[0], nodes.NewRun(o.env.User, o.message, o.env.Now())
				r.Do = many.kind()
				if cancelRetirement {
					cancel := nodes.CancelRetirement
					if o.dryRun {
						cancel = nodes.PreviewCancel
					}
					hold, err := cancel(ctx, s, ref, node, r)
					if hold != nil {
						cli.Cleanf(o.env.Stdout, "ended its hold: %s\n", hold.Reason()) // not necessarily its only one
					}
					if err != nil {
						return err
					}
					fmt.Fprintf(o.env.Stdout, "canceled the retirement of %s in %s\n", node, ref)
				} else if err := nodes.RequestRun(ctx, s, ref, node, r); err != nil {
					return err
				}
				if wait == 0 {
					fmt.Fprintf(o.env.Stdout, "requested a run of %s in %s at its next tick\n", node, ref)
					return nil
				}
				outcome, err := nodes.AwaitAnswer(ctx, control.In(s), ref, node, r, wait)
				if err == nil {
					cli.Cleanf(o.env.Stdout, "%s in %s ran: %s\n", node, ref, many.outcome(outcome))
				}
				return err
			})
		},
	}
	o.addMessage(cmd, "reason, shown with the run")
	cmd.Flags().BoolVar(&cancelRetirement, "cancel-retirement", false, "cancel the node's retirement first")
	o.addDryRun(cmd)
	o.wait.add(cmd, "wait for the answer")
	many.add(cmd)
	o.addConfirmation(cmd)
	return cmd
}

func newNodesUnlock(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unlock NODE -e ENVIRONMENT -m REASON", Short: "Free a node's name from a machine in its first boot", Args: arguments(1, 1, "takes one node"),
		Long: `unlock is for a machine that will never finish its first boot: another machine can then join under the name, with a
token for this node. It also forgets a duplicate machine that used the name, which only an administrator of etcd can do. The
machine itself may continue until another one has joined.

unlock asks for confirmation. In scripts, use --yes.`,
		RunE: func(c *cobra.Command, args []string) error {
			if o.message == "" {
				return cli.Usagef("cannot unlock %s without a reason: give -m REASON", args[0])
			}
			if err := o.mayConfirm(); err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				question := fmt.Sprintf("Another machine can join %s as %s with a token for this node.\nUnlock it?", ref, cli.Clean(args[0]))
				if err := o.confirm(ctx, question); err != nil {
					return err
				}
				freed, err := access.JoinsIn(s).Unlock(ctx, ref, args[0], access.Revoked{At: o.env.Now().UTC().Truncate(time.Second), By: o.env.User, Why: model.Prose(o.message)})
				if errors.Is(err, etcd.ErrNotFound) {
					return fmt.Errorf("%w: no machine is in its first boot as %s\nrun `pulley nodes -e %s` to list the first boots", err, quoted(args[0]), ref)
				}
				for _, b := range freed {
					cli.Cleanf(o.env.Stdout, "unlocked %s of %s: machine %s was at step %s\n", args[0], ref, b.Machine, b.Step)
				}
				if err == nil && len(freed) == 0 {
					fmt.Fprintf(o.env.Stdout, "forgot the duplicate machine of %s in %s\n", args[0], ref)
				}
				return err
			})
		},
	}
	o.addMessage(cmd, "reason, kept with the machine's first boot")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

func newNodesPause(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause -e ENVIRONMENT -m REASON", Short: "Let no new machine begin to be provisioned into a Puppet server", Args: arguments(0, 0, "takes no arguments"),
		Long: `pause concerns new machines of an environment with Puppet servers. A machine that has its turn completes it; others wait, and ` + "`pulley nodes`" + `
shows them with the reason. Nodes that are provisioned continue as before.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.message == "" {
				return cli.Usagef("cannot pause provisioning without a reason: give -m REASON")
			}
			return o.pauseProvisioning(c, true)
		},
	}
	o.addMessage(cmd, "reason, shown to the machines that wait")
	o.addDryRun(cmd)
	return cmd
}

func newNodesResume(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume -e ENVIRONMENT", Short: "Let new machines be provisioned again", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return o.pauseProvisioning(c, false) },
	}
	o.addDryRun(cmd)
	return cmd
}

// pauseProvisioning pauses the provisioning of an environment, or resumes it.
func (o *options) pauseProvisioning(c *cobra.Command, pause bool) error {
	return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
		if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
			return err
		}
		now := o.env.Now()
		var by *access.Revoked
		if pause {
			by = &access.Revoked{At: now.UTC().Truncate(time.Second), By: o.env.User, Why: model.Prose(o.message)}
		}
		was, err := access.FirstBootsIn(s).Pause(ctx, ref, by)
		if err != nil {
			return err
		}
		switch {
		case pause:
			fmt.Fprintf(o.env.Stdout, "paused the provisioning of %s: no new machine begins\n", ref)
			if was != nil {
				cli.Cleanf(o.env.Stdout, "replaced the pause of %s, %s: %s\n", was.By, cli.Ago(now, was.At), was.Why)
			}
		case was != nil:
			fmt.Fprintf(o.env.Stdout, "resumed the provisioning of %s\n", ref)
		default:
			fmt.Fprintf(o.env.Stdout, "the provisioning of %s is not paused\n", ref)
		}
		return nil
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/child"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers"
	"pulley/internal/machines/drivers/command"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/model"
)

func newProvider(o *options) *cobra.Command {
	return group("provider", "List and enter the machines of a provider, and test a provider", "", newProviderList(o), newProviderEnter(o), newProviderTest(o))
}

func newProviderList(o *options) *cobra.Command {
	var file envFileFlags
	var owner string
	cmd := &cobra.Command{
		Use: "list FILE", Short: "List the machines of an environment at its provider", Args: arguments(1, 1, "takes an environment file"),
		Long: `Lists all machines with the mark of the environment's fleet at its provider, including machines without a record. The settings of
the provider are those of the file, not the stored ones.`,
		RunE: func(c *cobra.Command, args []string) error {
			e, err := o.readEnvironment(args[0], file)
			if err != nil {
				return err
			}
			if owner != "" {
				e.Provider.Owner = owner
			}
			var all []machines.Machine
			if owner, err = o.ownerOf(c, e); err == nil && owner != "" { // without an owner there was no apply, and no machine
				var p drivers.Provider
				if p, err = o.opener().OpenMark(c.Context(), e, machines.Mark{Owner: owner, Fleet: e.Ref().String()}); err == nil {
					all, err = p.List(c.Context())
				}
			}
			if err != nil {
				return err
			}
			return showMachines(o, all)
		},
	}
	file.add(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "owner of the machines (default: this installation)")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// ownerOf returns the owner of an environment's machines: the one of its file, or the installation. It is "" before the first apply.
func (o *options) ownerOf(c *cobra.Command, e *environments.Environment) (owner string, err error) {
	if e.Provider.Owner != "" {
		return e.Provider.Owner, nil
	}
	err = o.withEtcd(c, func(ctx context.Context, s *etcd.DB) (err error) {
		owner, err = cluster.In(s).Installation(ctx)
		return err
	})
	return owner, err
}

func newProviderEnter(o *options) *cobra.Command {
	var file envFileFlags
	cmd := &cobra.Command{
		Use: "enter FILE NODE [COMMAND…]", Short: "Start a shell, or a command, in a local machine", Args: arguments(2, 1000, "takes an environment file and a node"),
		Long: `Start a login shell in a machine of the local provider, or run a command there, as root. The command runs nsenter of util-linux.
Machines of other providers have their own ways: ssh, the console of a cloud, or machinectl.

EXIT STATUS
  0 done, else that of the command; 1 also if the machine cannot be entered, 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley provider enter environments/dev.yaml controller1
  pulley provider enter environments/dev.yaml controller1 -- puppet --version`,
		RunE: func(c *cobra.Command, args []string) error {
			e, err := o.readEnvironment(args[0], file)
			if err != nil {
				return err
			}
			node := args[1]
			if err := model.CheckMember(node); err != nil {
				return cli.Usagef("%v", err)
			}
			owner, err := o.ownerOf(c, e)
			if err != nil {
				return err
			}
			pid, err := o.opener().Process(e, owner, model.MachineName(node))
			if err != nil {
				return fmt.Errorf("cannot enter the machine of %s: %w\n`pulley provider list %s` lists the machines", node, err, args[0])
			}
			run := args[2:]
			if len(run) == 0 {
				// dash fails at its end, because the terminal's process group is not visible in the machine
				run = []string{"/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"}
			}
			return o.enter(c.Context(), pid, run)
		},
	}
	file.add(cmd)
	return cmd
}

// enter runs a command in the namespaces of a process.
func (o *options) enter(ctx context.Context, pid int, run []string) error {
	// Ctrl-C is for the command in the machine, which the terminal sends it to: it must not end the shell there.
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin", "HOME=/root", "USER=root", "LOGNAME=root", "LANG=C.UTF-8", "TERM=" + o.env.Getenv("TERM")}
	err := child.Command{
		Path: "nsenter", Args: append([]string{"--target", strconv.Itoa(pid), "--all", "--"}, run...),
		Env: env, Stdin: o.env.Stdin, Stdout: o.env.Stdout, Stderr: o.env.Stderr, Terminal: true,
	}.Run(context.WithoutCancel(ctx))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return &cli.SilentError{Code: exit.ExitCode()}
	}
	if err != nil {
		return fmt.Errorf("cannot run %s in the machine: %w", run[0], err)
	}
	return nil
}

func showMachines(o *options, all []machines.Machine) error {
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		t.Row("NAME", "ID", "STATE", "FLAVOR", "IMAGE", "ADDRESSES", "AGE", "PROBLEM")
		for _, m := range all {
			age := ""
			if !m.Created.IsZero() {
				age = cli.Span(o.env.Now().Sub(m.Created).Truncate(time.Second))
			}
			t.Row(m.Name, m.ID, string(m.State), m.Flavor, m.Image, strings.Join(m.Addresses, " "), age, m.Problem)
		}
		return nil
	})
}

// providerTest contains the flags of `pulley provider test`.
type providerTest struct {
	*options
	file             string
	sets             envFileFlags
	order            machines.Order
	clean            string // the owner of an interrupted test
	call, boot, gone time.Duration
}

func newProviderTest(o *options) *cobra.Command {
	t := providerTest{options: o}
	cmd := &cobra.Command{
		Use:   "test {--environment FILE | -- COMMAND [ARGUMENT…]}",
		Short: "Test a provider with real machines",
		Long: `Makes machines with the provider of an environment file, or with a command, in fleets of their own, and reports for each
requirement of Pulley whether the provider meets it. At most six machines exist at a time. All are deleted again, also after an
interrupt. After a kill, --clean OWNER deletes the rest; the test prints its owner first.

--flavor, --image and --network default to those of the file's first role.`,
		Args: func(c *cobra.Command, args []string) error {
			switch dash := c.ArgsLenAtDash(); {
			case t.file == "" && (len(args) == 0 || dash != 0):
				return cli.Usagef("`%s` takes --environment FILE, or a command after --", c.CommandPath())
			case t.file != "" && len(args) > 0:
				return cli.Usagef("`%s` takes --environment FILE or a command, not both", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			open, err := t.openMark(c, args)
			if err != nil {
				return err
			}
			if t.clean != "" {
				return t.cleanUp(c.Context(), open)
			}
			return t.run(c.Context(), open)
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.file, "environment", "", "environment file whose provider is tested")
	t.sets.add(cmd)
	f.StringVar(&t.order.Flavor, "flavor", "", "flavor of the machines, as the provider calls it")
	f.StringVar(&t.order.Image, "image", "", "image of the machines, as the provider calls it")
	f.StringArrayVar(&t.order.Networks, "network", nil, "network of the machines, as the provider calls it; may be repeated")
	f.StringVar(&t.clean, "clean", "", "delete the machines of a test with this owner, and test nothing")
	cli.DurationVar(f, &t.call, "call", conform.DefaultCall, "time for one request")
	cli.DurationVar(f, &t.boot, "boot", conform.DefaultBoot, "time until a machine runs")
	cli.DurationVar(f, &t.gone, "gone", conform.DefaultGone, "time until a deleted machine is no longer listed")
	o.out.AddFlags(f)
	return cmd
}

// openMark returns the function that opens the provider for a mark.
func (t *providerTest) openMark(c *cobra.Command, args []string) (func(machines.Mark) (machines.Provider, error), error) {
	if t.file == "" {
		return func(mark machines.Mark) (machines.Provider, error) {
			return command.New(command.Config{Command: args, Timeout: t.call, Mark: mark, Environ: os.Environ(), Log: t.opener().Log})
		}, nil
	}
	e, err := t.readEnvironment(t.file, t.sets)
	if err != nil {
		return nil, err
	}
	if len(e.Roles) > 0 {
		r, given := e.Roles[0], c.Flags().Changed
		if !given("flavor") {
			t.order.Flavor = e.FlavorOf(r)
		}
		if !given("image") {
			t.order.Image = e.ImageOf(r)
		}
		if !given("network") {
			t.order.Networks = e.NetworksOf(r)
		}
	}
	return func(mark machines.Mark) (machines.Provider, error) {
		p, err := t.opener().OpenMark(c.Context(), e, mark)
		return p.Provider, err
	}, nil
}

// checked is one check in the JSON output.
type checked struct {
	Check   string `json:"check"`
	Outcome string `json:"outcome"` // "passed", "failed" or "skipped"
	Why     string `json:"why,omitempty"`
	Seconds int    `json:"seconds"`
}

func (t *providerTest) config(open func(machines.Mark) (machines.Provider, error)) conform.Config {
	return conform.Config{
		New: open, Order: func(string) machines.Order { return t.order }, Call: t.call, Boot: t.boot, Gone: t.gone,
	}
}

func (t *providerTest) cleanUp(ctx context.Context, open func(machines.Mark) (machines.Provider, error)) error {
	if err := conform.Clean(ctx, t.config(open), t.clean); err != nil {
		return err
	}
	if t.out.ForPeople() {
		fmt.Fprintln(t.env.Stdout, "owner", t.clean, "has no machines")
	}
	return nil
}

func (t *providerTest) run(ctx context.Context, open func(machines.Mark) (machines.Provider, error)) error {
	config := t.config(open)
	config.Owner = conform.NewOwner()
	to := t.env.Stdout
	if !t.out.ForPeople() {
		to = t.env.Stderr
	}
	fmt.Fprintf(to, "owner %s: after a kill, the same command with --clean %[1]s deletes the machines\n", config.Owner)
	results := []checked{}
	err := conform.Run(ctx, config, func(r conform.Result) {
		c := checked{Check: r.Check, Outcome: "passed", Seconds: int(r.Took.Seconds())}
		sign := "✓"
		switch {
		case r.Err != nil:
			sign, c.Outcome, c.Why = "✗", "failed", r.Err.Error()
		case r.Skipped != "":
			sign, c.Outcome, c.Why = "–", "skipped", "not checked: "+r.Skipped
		}
		results = append(results, c)
		if !t.out.ForPeople() {
			return
		}
		fmt.Fprintln(t.env.Stdout, sign, c.Check)
		for line := range strings.Lines(c.Why) {
			fmt.Fprintln(t.env.Stdout, "   ", cli.Clean(strings.TrimSpace(line)))
		}
	})
	if !t.out.ForPeople() {
		if err := t.out.Print(t.env, results, nil); err != nil {
			return err
		}
	}
	return err
}

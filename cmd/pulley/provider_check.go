package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/drivers/command"
	"pulley/internal/drivers/conform"
	"pulley/internal/machines"
)

// providerTest is what `pulley provider test` is told.
type providerTest struct {
	*options
	file             string
	sets             envFileFlags
	order            machines.Order
	clean            string // the owner of a check that was killed
	call, boot, gone time.Duration
}

func newProviderTest(o *options) *cobra.Command {
	t := providerTest{options: o}
	cmd := &cobra.Command{
		Use:   "test {--environment FILE | -- COMMAND [ARGUMENT…]}",
		Short: "Test a provider with real machines",
		Long: `Makes machines at the provider that an environment file names, or by a command, in fleets of their own, and says of each
thing that Pulley counts on whether it is so. At most six machines are there at a time; all are deleted again, also
when this is interrupted. What it left when it was killed, --clean OWNER deletes, with the owner that it has said at first.

Without --flavor, --image and --network machines are as the file's first role has them.`,
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
			open, err := t.opener(c, args)
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
	f.StringVar(&t.file, "environment", "", "environment file whose provider is checked")
	t.sets.add(cmd)
	f.StringVar(&t.order.Flavor, "flavor", "", "flavor of the machines, as the provider calls it")
	f.StringVar(&t.order.Image, "image", "", "image of the machines, as the provider calls it")
	f.StringArrayVar(&t.order.Networks, "network", nil, "network of the machines, as the provider calls it; may be given again")
	f.StringVar(&t.clean, "clean", "", "delete what a check of that owner left, and check nothing")
	f.DurationVar(&t.call, "call", conform.DefaultCall, "how long one request may take")
	f.DurationVar(&t.boot, "boot", conform.DefaultBoot, "how long a machine may take until it runs")
	f.DurationVar(&t.gone, "gone", conform.DefaultGone, "how long a machine that was deleted may still be listed")
	o.out.AddFlags(f)
	return cmd
}

// opener returns what opens the provider for a fleet.
func (t *providerTest) opener(c *cobra.Command, args []string) (func(machines.Mark) (machines.Provider, error), error) {
	if t.file == "" {
		return func(mark machines.Mark) (machines.Provider, error) {
			return command.New(command.Config{Command: args, Timeout: t.call, Mark: mark, Environ: os.Environ(), Log: t.driverLog()})
		}, nil
	}
	e, err := t.readEnvironment(c, t.file, t.sets)
	if err != nil {
		return nil, err
	}
	if len(e.Roles) > 0 {
		r := e.Roles[0]
		for _, word := range []struct {
			flag string
			set  func()
		}{
			{"flavor", func() { t.order.Flavor = e.FlavorOf(r) }},
			{"image", func() { t.order.Image = e.ImageOf(r) }},
			{"network", func() { t.order.Networks = e.NetworksOf(r) }},
		} {
			if !c.Flags().Changed(word.flag) {
				word.set()
			}
		}
	}
	return func(mark machines.Mark) (machines.Provider, error) {
		p, _, err := t.openProvider(c.Context(), e, mark)
		return p, err
	}, nil
}

// checked is one check for programs.
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
	told := t.env.Stdout
	if !t.out.ForPeople() {
		told = t.env.Stderr
	}
	fmt.Fprintf(told, "owner %s: should this be killed, the same command with --clean %[1]s deletes what it left\n", config.Owner)
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

package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/internal/cli"
)

const program = "pulley-agent"

// Main runs the complete program. All input and output goes through env.
func Main(ctx context.Context, env cli.Env, args []string) int {
	o := &options{env: env}
	root := newRoot(o)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cli.Usagef("%v\n`%s --help` lists its flags", err, c.CommandPath())
	})
	err := root.ExecuteContext(ctx)
	return cli.Exit(o.env, program, err)
}

// options are the flags of every verb, with the environment in which they are read.
type options struct {
	env cli.Env
	nodeconfig.Flags
	log     cli.LogFlags
	logger  *slog.Logger
	verbose bool
	step    func(name string) // receives each step of a tick; may be nil
}

func newRoot(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Keep this machine on the Puppet code and data that its operators want",
		Long: `pulley-agent compares the desired state in etcd with this machine, fetches the missing content, runs Puppet, and reports
the result. Cron starts it; nothing connects to it.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Version: o.env.Version,
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },

		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if o.verbose {
				o.log.Level = "debug"
			}
			o.logger, err = o.log.Open(&o.env)
			return err
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&o.Root, "root", "/", "folder that contains the agent's files: etc/pulley, var/lib/pulley")
	f.StringVar(&o.Flags.Path, "config", "", "settings (default <root>/etc/pulley/agent.yaml)")
	f.StringVar(&o.Node, "node", "", "name of this node (default: from agent.yaml, else from the hostname)")
	f.StringVar(&o.Role, "role", "", "role of this node (default: from agent.yaml, else from the name)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each step, as --log-level debug")
	o.log.AddFlags(f)
	o.Environment.AddFlag(f)
	o.Connection.AddFlags(f)
	f.StringVar(&o.AllowedSigners, "allowed-signers", "", "file of the allowed signers of releases and data, see ssh-keygen(1) (default <root>/etc/pulley/allowed_signers if it exists)")
	f.StringVar(&o.RevokedSigners, "revoked-signers", "", "file of revoked public keys, one per line (default <root>/etc/pulley/revoked_signers if it exists)")
	f.StringSliceVar(&o.Mirrors, "mirrors", nil, "https URL of a mirror, the first source of releases; etcd is the second; repeatable")
	root.AddCommand(newRun(o), newDaemon(o), newStatus(o), newEnable(o), newDisable(o), newPuppet(o), newBootstrap(o), newLeave(o), newTakeover(o), newUpgrade(o), newSelftest(o))
	addMan(root)
	addExamples(root)
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return cli.Usagef("cannot find verb %q\n`%s --help` lists the verbs", args[0], c.CommandPath())
	}
	return cli.Usagef("%s takes no arguments, and was given %q", c.CommandPath(), args)
}

// addOutput gives a verb the flag -o.
func (o *options) addOutput(cmd *cobra.Command, out *cli.Output) {
	out.AddFlags(cmd.Flags())
	cmd.PreRunE = func(*cobra.Command, []string) error {
		out.Fill(o.env)
		return out.Check()
	}
}

// load reads the node's configuration. Verbs that work offline (status, enable, disable) do not need it.
func (o *options) load() (nodeconfig.Config, error) { return o.Load(o.env) }

// setup returns the node's agent with the streams and flags of this command.
func (o *options) setup(c nodeconfig.Config) node.Setup {
	return node.Setup{
		Config: c, Version: o.env.Version, Now: o.env.Now, Log: o.logger, Stdout: o.env.Stdout, Stderr: o.env.Stderr,
		Warn: func(err error) { cli.Complain(o.env, program, err) }, Step: o.step,
	}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

const program = "pulley"

// Main runs the complete program. All input and output goes through env.
func Main(ctx context.Context, env cli.Env, args []string) int {
	o := &options{env: env}
	root := newRoot(o)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if err := wrongVerb(root, args); err != nil {
			return err
		}
		return cli.Usagef("%v\n`%s --help` lists its flags", err, c.CommandPath())
	})
	err := root.ExecuteContext(ctx)
	return cli.Exit(o.env, program, err)
}

// wrongVerb reports a misspelled verb: its flags, which its group does not have, are not the mistake.
func wrongVerb(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") { // as cobra: a flag that it does not know has a value
		rest = rest[min(len(rest), 2-min(strings.Count(rest[0], "="), 1)):]
	}
	if err != nil || !c.HasSubCommands() || len(rest) == 0 {
		return nil
	}
	return c.Args(c, rest[:1])
}

// options are the flags that several verbs share. Each verb adds those that it reads.
type options struct {
	env        cli.Env
	root       *cobra.Command // for the commands that messages name
	connection cli.Connection
	context    contextFlag
	out        cli.Output
	fleet      cli.EnvironmentFlag
	scope      scopeFlags
	wait       waitFlag
	sign       signFlag
	message    string
	yes        bool // do not ask for confirmation
	dryRun     bool // etcd gets no write
	aborts     bool // end a rollout in progress
	foreign    bool // take a release of another repository
	rollout    bool // roll out new live data
	payload    bool // standard output is for a program

	previewWait time.Duration // for the preview that a rollout's policy demands; 0: the default
}

func newRoot(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Keep fleets of machines on the Puppet code and data that their operators want",
		Long: `Nodes pull: operators publish a release once and promote it. Every node fetches the missing parts, runs Puppet and reports
the result. The only server that a node needs is etcd.`,
		Version: o.env.Version,
		Args:    arguments(0, 0, ""),
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },

		PersistentPreRunE: func(*cobra.Command, []string) error {
			o.readContext()
			o.out.Fill(o.env)
			return errors.Join(o.out.Check(), o.checkMessage())
		},
	}
	o.root = root
	o.connection.AddFlags(root.PersistentFlags())
	o.context.add(root)
	root.AddCommand(
		newServe(o), newBackup(o), newRestore(o), newDemo(o),
		newInit(o), newValidate(o), newPublish(o), newReleases(o), newPreview(o), newPromote(o), newRollback(o), newRollout(o), newJob(o), newRecover(o), newSign(o), newHistory(o),
		newEnv(o), newENC(o), newProvider(o), newPuppetserver(o), newData(o), newSecret(o),
		newStatus(o), newNodes(o), newFacts(o), newExplain(o), newRuns(o), newHold(o), newUnhold(o), newHolds(o), newUserdata(o), newKey(o), newDoctor(o), newOperators(o), newAuth(o), newToken(o), newLogin(o), newContext(o), newCA(o), newAgents(o), newVersion(o),
	)
	addMan(root)
	addExitCodes(root)
	addExamples(root)
	o.addReadAgain(root)
	completer{o}.addCompletions(root)
	o.addEnvironments(root)
	return root
}

// group returns a command that only has verbs.
func group(use, short, long string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(verbs...)
	return cmd
}

func newVersion(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(o.env.Stdout, "%s version %s\n", program, o.env.Version)
			return err
		},
	}
}

// addExitCodes adds the usual exit codes to the help of every verb that does not list its own.
func addExitCodes(c *cobra.Command) {
	if c.Long == "" {
		c.Long = c.Short
	}
	if !strings.Contains(c.Long, "EXIT STATUS") {
		c.Long += "\n\nEXIT STATUS\n  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable"
	}
	for _, sub := range c.Commands() {
		addExitCodes(sub)
	}
}

// reads is the command that shows the result of a change, by the first verb of the change.
var reads = map[string]string{
	"agents": "agents list", "auth": "doctor", "ca": "ca show", "data": "data get -e", "env": "env history -e", "hold": "holds -e", "nodes": "nodes -e", "operators": "operators list",
	"promote": "history -e", "publish": "releases", "recover": "history -e", "releases": "releases", "rollback": "history -e", "rollout": "rollout show -e", "secret": "secret list -e", "sign": "status -e", "token": "token list", "unhold": "holds -e",
}

// addReadAgain makes every verb name the command that shows whether a change is in force whose answer was lost.
func (o *options) addReadAgain(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			err := o.waysOut(c, run(c, args))
			verb, _, _ := strings.Cut(strings.TrimPrefix(c.CommandPath(), program+" "), " ")
			if next, known := reads[verb]; known && errors.Is(err, etcd.ErrUnknownOutcome) && !errors.Is(err, etcd.ErrReadAgain) {
				if strings.HasSuffix(next, " -e") {
					next += " " + cmp.Or(o.fleet.Used, "ENVIRONMENT")
				}
				err = fmt.Errorf("%w\n%w: run `%s %s` before you repeat the command", err, etcd.ErrUnknownOutcome, program, next)
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		o.addReadAgain(sub)
	}
}

// maxMessageBytes limits the -m of a verb, because each change of a fleet stores it.
const maxMessageBytes = 1 << 10

func (o *options) addMessage(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&o.message, "message", "m", "", usage)
}

// checkMessage rejects a long message before anything is read or sent.
func (o *options) checkMessage() error {
	if n := len(o.message); n > maxMessageBytes {
		return cli.Usagef("cannot use a message of %s: give -m at most %s", cli.Bytes(int64(n)), cli.Bytes(maxMessageBytes))
	}
	return nil
}

// arguments checks the number of arguments; hint describes them. It refuses an empty argument in the place of a required
// name: a script whose variable is unset passes one.
func arguments(least, most int, hint string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case least > 0 && len(args) > 0 && args[0] == "":
			return cli.Usagef("cannot use an empty argument: `%s` %s", c.CommandPath(), hint)
		case len(args) >= least && len(args) <= most:
			return nil
		case c.HasSubCommands() && len(args) > 0:
			var verbs, below []string
			for _, sub := range c.Commands() {
				verbs = append(verbs, sub.Name())
				for _, deep := range sub.Commands() {
					if deep.Name() == args[0] && !deep.Hidden {
						below = append(below, sub.Name()+" "+deep.Name())
					}
				}
			}
			problem := "cannot find verb " + quoted(args[0])
			lists := args[0] == "ls" || args[0] == "list"
			switch near := model.SuggestName(args[0], verbs); {
			case lists && c.Parent() != nil && !slices.Contains(verbs, "list"):
				problem += fmt.Sprintf("\n`%s` without a verb lists them", c.CommandPath())
			case lists && c.Parent() == nil:
				problem += "\nnodes, releases, env list and history list things"
			case args[0] == "rm" && c.Parent() == nil:
				problem += "\nnodes remove, data unset and env destroy remove things"
			case args[0] == "rm" && c.Name() == "releases":
				problem += "\nreleases withdraw and releases prune remove releases"
			case len(below) > 0:
				problem += "\ndid you mean " + strings.Join(below, ", ") + "?"
			case near != "":
				problem += "\ndid you mean " + near + "?"
			}
			return cli.Usagef("%s\n`%s --help` lists the verbs", problem, c.CommandPath())
		}
		return cli.Usagef("`%s` %s", c.CommandPath(), hint)
	}
}

// withEtcd runs do with a connection to etcd.
func (o *options) withEtcd(c *cobra.Command, do func(context.Context, *etcd.DB) error) error {
	if err := o.connect(); err != nil {
		return err
	}
	o.env.User = o.connection.Author(o.env)
	config := o.connection.Config()
	config.DryRun = o.dryRun
	s, err := etcd.Open(config)
	if err != nil {
		return err
	}
	s.Now = o.env.Now
	o.announceDryRun()
	err = errors.Join(do(c.Context(), s), s.Close())
	if len(o.connection.Endpoints) == 0 && errors.Is(err, model.ErrUnreachable) {
		err = fmt.Errorf("%w\nno address of a fleet was given: `pulley login` stores one in a context, or give --endpoints", err)
	}
	return err
}

// inFleet is withEtcd for a command about one environment.
func (o *options) inFleet(c *cobra.Command, do func(context.Context, *etcd.DB, model.Ref) error) error {
	ref, err := o.fleet.Ref(o.env)
	if err != nil {
		return cmp.Or(o.context.err, err) // an unreadable context would have named the environment
	}
	return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error { return do(ctx, s, ref) })
}

// warn prints warnings, and after the last one of unreadable keys their remedy.
func (o *options) warn(all []string) {
	last := -1
	for i, w := range all {
		if strings.HasPrefix(w, "cannot read key ") {
			last = i
		}
	}
	for i, w := range all {
		if i == last {
			w += "\nrun `pulley doctor`: it names the command that deletes a key that cannot be read"
		}
		cli.Complain(o.env, program, fmt.Errorf("warning: %s", w))
	}
}

// joined lists values for people.
func joined[T any](values []T) string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = fmt.Sprint(v)
	}
	return strings.Join(all, ", ")
}

func quoted(s string) string { return `"` + cli.Clean(s) + `"` }

// scopeFlags are the flags --role and --node.
type scopeFlags struct{ role, node string }

func (f *scopeFlags) add(c *cobra.Command, what string) {
	c.Flags().StringVar(&f.role, "role", "", what+" of one role")
	c.Flags().StringVar(&f.node, "node", "", what+" of one node")
}

// value returns the scope that the flags name.
func (f *scopeFlags) value() (etcd.Scope, error) {
	if f.role != "" && f.node != "" {
		return etcd.Scope{}, cli.Usagef("--role and --node exclude each other")
	}
	return etcd.Scope{Role: f.role, Node: f.node}, nil
}

// find returns the scope that the flags name, checked against the environment.
func (f *scopeFlags) find(ctx context.Context, s *etcd.DB, ref model.Ref) (etcd.Scope, error) {
	scope, err := f.value()
	if err != nil {
		return scope, err
	}
	return scope, promotion.CheckScope(ctx, s, ref, scope)
}

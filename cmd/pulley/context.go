package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/access/contexts"
	"pulley/internal/access/fleetca"
	"pulley/internal/cli"
	"pulley/internal/model"
	"pulley/internal/serve/member"
)

// contextFlag is the flag --context, and the context that it selects.
type contextFlag struct {
	name   string
	chosen string           // name of the context that counts; "" for none
	values contexts.Context // of the chosen context
	err    error            // why it cannot be read; reported by the verbs that need it
}

func (f *contextFlag) add(root *cobra.Command) {
	root.PersistentFlags().StringVar(&f.name, "context", "", "`NAME` of the context to use; for login and serve, to write [PULLEY_CONTEXT] (default: the current one)")
}

// replacedByContext are the variables that do not count beside --context or PULLEY_CONTEXT, which name one fleet. A flag wins over the
// others, too.
var (
	replacedByContext = []string{"ENDPOINTS", "CACERT", "CERT", "KEY", "PREFIX", "SERVERS"}
	replacedByFlag    = append([]string{"ENVIRONMENT", "SIGN_KEY"}, replacedByContext...)
)

// readContext chooses the context of this command, and sets its defaults. Endpoints of a flag or a variable may be another
// fleet's: then no context counts, unless --context or PULLEY_CONTEXT names it.
func (o *options) readContext() {
	f := &o.context
	name := cmp.Or(f.name, o.env.Getenv("PULLEY_CONTEXT"))
	switch {
	case name != "":
		getenv, replaced := o.env.Getenv, replacedByContext
		if f.name != "" {
			replaced = replacedByFlag
		}
		o.env.Getenv = func(name string) string {
			_, own, known := strings.Cut(name, "_")
			if known && (strings.HasPrefix(name, "PULLEY_") || strings.HasPrefix(name, "ETCDCTL_")) && slices.Contains(replaced, own) {
				return ""
			}
			return getenv(name)
		}
	case o.connection.NamesFleet(o.env):
		return
	}
	file, err := o.contextFile()
	if err != nil {
		f.err = err
		return
	}
	if name = cmp.Or(name, file.Current); name == "" {
		return
	}
	if f.values, f.err = file.Get(name); f.err != nil {
		return
	}
	f.chosen = name
	if len(f.values.Endpoints) > 0 {
		o.env.Getenv = cli.WithoutEtcdctl(o.env.Getenv)
	}
	o.fleet.Default, o.sign.standard = f.values.Environment, f.values.SignKey
}

// contextFile reads config.yaml. Without a home folder there is none.
func (o *options) contextFile() (contexts.File, error) {
	path, err := contexts.Path(o.env.Getenv)
	if err != nil {
		return contexts.File{}, nil //nolint:nilerror // the verbs that write the file report it
	}
	return contexts.Read(path)
}

// connect completes the connection: flags win over variables, and variables over the context.
func (o *options) connect() error {
	c, v := &o.connection, o.context.values
	if o.context.err != nil {
		return o.context.err
	}
	c.Fill(o.env)
	if len(c.Endpoints) == 0 {
		c.Endpoints = slices.Clone(v.Endpoints)
	}
	if c.Cert == "" && c.Key == "" {
		c.Cert, c.Key = v.Cert, v.Key
	}
	c.CACert, c.Prefix = cmp.Or(c.CACert, v.CACert), cmp.Or(c.Prefix, v.Prefix)
	return c.Check()
}

// connectTo completes the connection to the fleet of a data folder: by the context that serve wrote for it, else by the usual endpoints.
func (o *options) connectTo(dataDir string) {
	c, own := &o.connection, contexts.Context{}
	c.Fill(o.env)
	bundle, err := filepath.Abs(filepath.Join(dataDir, fleetca.PKIName, "bundle.pem"))
	if file, bad := o.contextFile(); err == nil && bad == nil {
		for _, name := range file.Names() {
			if known := file.Contexts[name]; known.CACert == bundle && len(known.Endpoints) > 0 {
				own = known
				break
			}
		}
	}
	if len(c.Endpoints) == 0 {
		c.Endpoints = own.Endpoints
	}
	if len(c.Endpoints) == 0 {
		c.Endpoints = []string{"https://" + member.DefaultListen}
	}
	c.Prefix = cmp.Or(c.Prefix, own.Prefix)
}

// servers returns the servers of joins: of PULLEY_SERVERS, or of the context.
func (o *options) servers() []string {
	if s := o.env.Getenv("PULLEY_SERVERS"); s != "" {
		return strings.Split(s, ",")
	}
	return o.context.values.Servers
}

// contextWriter writes the context of a fleet that was just reached.
type contextWriter struct {
	path  string   // of config.yaml
	base  string   // usual name
	given string   // name of --context; "" for none
	pins  []string // fingerprints of the fleet's CA

	name, current string // as written
}

// write writes a context, and never into that of another fleet or identity. With use it becomes the current one.
func (w *contextWriter) write(c contexts.Context, use bool) error {
	return contexts.Change(w.path, func(f *contexts.File) (err error) {
		w.name, err = w.choose(*f, func(string) string { return c.Cert })
		if err == nil {
			f.Connect(w.name, c, use)
			w.current = f.Current
		}
		return err
	})
}

// choose returns the name of the context for an identity. Its file depends on the name; "" excludes a name.
func (w *contextWriter) choose(f contexts.File, file func(name string) string) (string, error) {
	usable := func(name string, c contexts.Context, exists bool) bool {
		own := file(name)
		return own != "" && (!exists || c.Cert == own && c.OfFleet(w.pins))
	}
	if w.given == "" {
		return f.FreeName(w.base, usable)
	}
	c, exists := f.Contexts[w.given]
	if err := contexts.CheckName(w.given); err != nil {
		return "", &cli.UsageError{Problem: err.Error()}
	}
	if !usable(w.given, c, exists) {
		return "", fmt.Errorf("cannot write context %s: it has another fleet or another identity (%s)\ngive another --context, or delete this one with `pulley context delete %s`",
			w.given, describeContext(c), w.given)
	}
	return w.given, nil
}

// result describes the written context.
func (w *contextWriter) result() string {
	text := fmt.Sprintf("context %s is written to %s", w.name, w.path)
	if w.current == w.name {
		return text + ", and is the current one: commands need no variables"
	}
	return text + fmt.Sprintf("; the current one is %s: run `pulley context use %s` to use this fleet", w.current, w.name)
}

// writeContext writes the context of a fleet's first administrator, for the user of this process. Without one, the printed variables
// name the fleet as well.
func (o *options) writeContext(c contexts.Context, certs *fleetca.Certificates, admin string) {
	path, err := contexts.Path(o.env.Getenv)
	for _, f := range []struct {
		to   *string
		file string
	}{{&c.CACert, certs.Bundle()}, {&c.Cert, admin}, {&c.Key, admin}} {
		if err == nil {
			*f.to, err = filepath.Abs(f.file)
		}
	}
	var w contextWriter
	if err == nil {
		w = contextWriter{path: path, base: contexts.NameFor(c.Endpoints[0]), given: o.context.name, pins: certs.CA.Fingerprints()}
		err = w.write(c, false)
	}
	if err != nil {
		cli.Complain(o.env, program, fmt.Errorf("warning: no context is written: %w", err))
		return
	}
	fmt.Fprintln(o.env.Stdout, w.result())
}

// contextCommand shows and changes contexts.
type contextCommand struct{ *options }

func newContext(o *options) *cobra.Command {
	cmd := group("context", "List, choose and change contexts: fleets, and your identity in each", `A context has what a command needs to reach a fleet: etcd's endpoints, your identity, the servers of joins, and your default
environment and signing key. pulley login and the first start of pulley serve --auth write one. Contexts are in
$XDG_CONFIG_HOME/pulley/config.yaml or ~/.config/pulley/config.yaml; keys and certificates stay in their own files.

Flags win over PULLEY_… variables, and variables over the context. With --endpoints or PULLEY_ENDPOINTS no context counts,
unless --context or PULLEY_CONTEXT names one: then the variables of the connection do not count.`,
		newContextList(o), newContextUse(o), newContextShow(o), newContextSet(o), newContextDelete(o))
	cmd.Example = `  pulley context list
  pulley context use production
  pulley context set --environment dev --sign-key ~/.ssh/pulley`
	return cmd
}

// listedContext is a context in lists and in JSON.
type listedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	contexts.Context
}

func newContextList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the contexts", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(*cobra.Command, []string) error {
			file, err := o.contextFile()
			if err != nil {
				return err
			}
			all := []listedContext{}
			for _, name := range file.Names() {
				all = append(all, listedContext{name, name == o.context.chosen, file.Contexts[name]})
			}
			if err := o.out.Print(o.env, all, func(t *cli.Table) error {
				if len(all) == 0 {
					fmt.Fprintln(o.env.Stdout, "there is no context: `pulley login` and `pulley serve --auth` write one")
					return nil
				}
				t.Row("CURRENT", "NAME", "ENVIRONMENT", "ENDPOINTS")
				for _, c := range all {
					mark := ""
					if c.Current {
						mark = "*"
					}
					t.Row(mark, c.Name, c.Environment, endpoints(c.Context))
				}
				return nil
			}); err != nil {
				return err
			}
			o.warnOfVariables()
			return nil
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// warnOfVariables reports that the commands of this terminal use no context.
func (o *options) warnOfVariables() {
	if o.context.name == "" && o.env.Getenv("PULLEY_CONTEXT") == "" && o.env.Getenv("PULLEY_ENDPOINTS") != "" {
		fmt.Fprintf(o.env.Stderr, "%s: note: PULLEY_ENDPOINTS is set: no context counts, unless --context names it\n", program)
	}
}

func newContextUse(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: arguments(1, 1, "takes one context, of `pulley context list`"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := contexts.Path(o.env.Getenv)
			if err != nil {
				return err
			}
			var c contexts.Context
			if err := contexts.Change(path, func(f *contexts.File) (err error) {
				c, err = f.Get(args[0])
				f.Current = args[0]
				return err
			}); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "commands act on %s now: %s\n", args[0], describeContext(c))
			o.warnOfVariables()
			return nil
		},
	}
}

// endpoints lists the endpoints of a context, or the usual one.
func endpoints(c contexts.Context) string {
	return cmp.Or(strings.Join(c.Endpoints, ","), cli.DefaultEndpoint)
}

func describeContext(c contexts.Context) string {
	text := endpoints(c)
	if c.Environment != "" {
		text += ", environment " + c.Environment
	}
	return text
}

func newContextShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context", Args: arguments(0, 1, "takes at most one context"),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := o.contextFile()
			if err != nil {
				return err
			}
			name, err := (contextCommand{o}).namedContext(file, args)
			if err != nil {
				return err
			}
			c, err := file.Get(name)
			if err != nil {
				return err
			}
			if err := o.out.Print(o.env, listedContext{name, name == o.context.chosen, c}, func(t *cli.Table) error {
				t.Row("context", name)
				for _, l := range [][2]string{
					{"endpoints", endpoints(c)}, {"cacert", c.CACert}, {"cert", c.Cert}, {"key", c.Key}, {"prefix", c.Prefix},
					{"servers", strings.Join(c.Servers, ",")}, {"environment", c.Environment}, {"sign_key", c.SignKey},
				} {
					if l[1] != "" {
						t.Row(l[0], l[1])
					}
				}
				return nil
			}); err != nil {
				return err
			}
			o.warnOfVariables()
			return nil
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// namedContext returns the context that an argument, --context or PULLEY_CONTEXT names, or else the current one.
func (o contextCommand) namedContext(file contexts.File, args []string) (string, error) {
	name := cmp.Or(strings.Join(args, ""), o.context.name, o.env.Getenv("PULLEY_CONTEXT"), file.Current)
	if name == "" {
		return "", fmt.Errorf("cannot choose a context: none is the current one\ngive its name; `pulley context list` lists them")
	}
	return name, nil
}

func newContextSet(o *options) *cobra.Command {
	var servers []string
	cmd := &cobra.Command{
		Use: "set [NAME]", Short: "Create or change a context",
		Long: `Set the values of a context that the flags give, and keep its other values. An empty value removes one: --environment "".
Without NAME, set changes the current context, or creates the first one. A new context becomes the current one if there is none.`,
		Example: `  pulley context set --environment dev
  pulley context set production --endpoints https://etcd1:2379 --cacert ca.pem --cert bob.pem --key bob.pem`,
		Args: arguments(0, 1, "takes at most one context"),
		RunE: func(c *cobra.Command, args []string) error {
			path, err := contexts.Path(o.env.Getenv)
			if err != nil {
				return err
			}
			var name string
			if err := contexts.Change(path, func(f *contexts.File) error {
				var err error
				if name, err = (contextCommand{o}).namedContext(*f, args); err != nil && len(f.Contexts) > 0 {
					return err
				}
				name = cmp.Or(name, contexts.NameFor(strings.Join(o.connection.Endpoints, ","))) // the first one
				if err := contexts.CheckName(name); err != nil {
					return &cli.UsageError{Problem: err.Error()}
				}
				v := f.Contexts[name]
				if err := (contextCommand{o}).setContext(c, &v, servers); err != nil {
					return err
				}
				f.Contexts[name] = v
				f.Current = cmp.Or(f.Current, name)
				return nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "context %s is written to %s\n", name, path)
			o.warnOfVariables()
			return nil
		},
	}
	f := cmd.Flags()
	o.fleet.AddFlag(f)
	o.sign.add(cmd)
	f.StringSliceVar(&servers, "servers", nil, "`URLs` of pulley serve, https://host:port, separated by commas")
	return cmd
}

// setContext sets the values that flags give. It makes paths absolute: commands run in any folder.
func (o contextCommand) setContext(c *cobra.Command, v *contexts.Context, servers []string) error {
	changed := c.Flags().Changed
	for _, f := range []struct {
		flag, value string
		to          *string
		file        bool
	}{
		{"cacert", o.connection.CACert, &v.CACert, true}, {"cert", o.connection.Cert, &v.Cert, true}, {"key", o.connection.Key, &v.Key, true},
		{"sign-key", o.sign.file, &v.SignKey, true}, {"prefix", o.connection.Prefix, &v.Prefix, false}, {"environment", o.fleet.Name, &v.Environment, false},
	} {
		switch {
		case !changed(f.flag):
			continue
		case f.flag == "environment" && f.value != "":
			if _, err := model.ParseRef(f.value); err != nil {
				return cli.Usagef("%v", err)
			}
		case f.file && f.value != "":
			var err error
			if f.value, err = filepath.Abs(f.value); err != nil {
				return err
			}
		}
		*f.to = f.value
	}
	if changed("endpoints") {
		own := cli.Connection{Endpoints: o.connection.Endpoints, CACert: v.CACert}
		own.Fill(cli.Env{Getenv: func(string) string { return "" }})
		v.Endpoints = own.Endpoints
	}
	if changed("servers") {
		v.Servers = servers
	}
	if changed("sign-key") && v.SignKey != "" {
		return o.sign.check(o.env)
	}
	return nil
}

func newContextDelete(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a context, but none of its files", Args: arguments(1, 1, "takes one context, of `pulley context list`"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := contexts.Path(o.env.Getenv)
			if err != nil {
				return err
			}
			var c contexts.Context
			var current bool
			if err := contexts.Change(path, func(f *contexts.File) (err error) {
				c, err = f.Get(args[0])
				delete(f.Contexts, args[0])
				if current = f.Current == args[0]; current {
					f.Current = ""
				}
				return err
			}); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "context %s is deleted\n", args[0])
			if c.Cert != "" {
				fmt.Fprintf(o.env.Stdout, "its identity is still in %s\n", c.Cert)
			}
			if current {
				fmt.Fprintln(o.env.Stdout, "no context is the current one: choose one with `pulley context use`")
			}
			return nil
		},
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/where"
)

func newEnv(o *options) *cobra.Command {
	return group("env", "Check, plan, apply, watch and destroy environments", "",
		newEnvPlan(o), newEnvApply(o), newEnvValidate(o), newEnvShow(o), newEnvList(o),
		newEnvWatch(o), newEnvHistory(o), newEnvDestroy(o), newEnvSchema(o))
}

func newEnvList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the stored environments", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				names, err := specs.In(s).List(ctx)
				if err != nil {
					return err
				}
				return o.out.Print(o.env, names, func(*cli.Table) error {
					if len(names) > 0 {
						fmt.Fprintln(o.env.Stdout, strings.Join(names, "\n"))
					}
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func newEnvShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [ENVIRONMENT]", Short: "Show a stored environment", Args: arguments(0, 1, "takes one environment"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.fleet.Name = args[0]
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
				if err != nil {
					return err
				}
				err = o.out.Print(o.env, shownOf(ref, e), func(t *cli.Table) error {
					t.Row("ROLE", "CARDINALITY", "FLAVOR", "NODES")
					for _, r := range e.Roles {
						t.Row(r.Name, strconv.Itoa(r.Cardinality), r.Flavor, span(e, r))
					}
					return nil
				})
				if err == nil && o.out.ForPeople() {
					o.showSettings(e)
				}
				return err
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

type shownEnvironment struct {
	Environment string                      `json:"environment"`
	Provider    environments.Provider       `json:"provider,omitzero"`
	Flavors     map[string]string           `json:"flavors,omitempty"`
	Images      map[string]string           `json:"images,omitempty"`
	Networks    map[string]string           `json:"networks,omitempty"`
	Trusted     map[string]string           `json:"trusted,omitempty"`
	Layers      []string                    `json:"layers,omitempty"`
	ENC         environments.Classification `json:"enc,omitzero"`
	Puppet      settings.PuppetSettings     `json:"puppet,omitzero"`
	Hosts       environments.HostSettings   `json:"hosts,omitzero"`
	Userdata    environments.Userdata       `json:"userdata,omitzero"`
	Roles       []environments.Role         `json:"roles"`
	Nodes       int                         `json:"nodes"`

	NodeSettings map[string]environments.NodeSettings `json:"node_settings,omitempty"`
	Applications environments.Applications            `json:"applications,omitempty"`
}

func shownOf(ref model.Ref, e *environments.Environment) shownEnvironment {
	return shownEnvironment{ref.String(), e.Provider, e.Flavors, e.Images, e.Networks, e.Trusted, e.DataLayers, e.ENC, e.Puppet, e.Hosts, e.Userdata, append([]environments.Role{}, e.Roles...), e.Count(), e.ByNode, e.Applications}
}

// showSettings prints the settings without a column in the table: a line for each role that has more, and one for each
// common setting.
func (o *options) showSettings(e *environments.Environment) {
	var lines []string
	for _, r := range e.Roles {
		if settings := r.Settings(); len(settings) > 0 {
			lines = append(lines, r.Name+": "+strings.Join(settings, ", "))
		}
	}
	lines = append(lines, e.Settings()...)
	if len(lines) > 0 {
		fmt.Fprintln(o.env.Stdout)
	}
	for _, line := range lines {
		fmt.Fprintln(o.env.Stdout, cli.Clean(line))
	}
}

// span formats a role's nodes: "compute1 … compute40".
func span(e *environments.Environment, r environments.Role) string {
	node := func(n int) string { return model.Node{Role: r.Name, Num: n, Stack: e.Stack}.String() }
	switch r.Cardinality {
	case 0:
		return "none"
	case 1:
		return node(1)
	case 2:
		return node(1) + " " + node(2)
	}
	return node(1) + " … " + node(r.Cardinality)
}

func newEnvValidate(o *options) *cobra.Command {
	var f envFileFlags
	cmd := &cobra.Command{
		Use: "validate FILE…", Short: "Report every mistake in environment files, with its place",
		Args: arguments(1, 1000, "takes environment files"),
		RunE: func(c *cobra.Command, args []string) error {
			code := cli.ExitDone
			for _, file := range args {
				e, err := o.readEnvironment(file, f)
				if err != nil {
					code = max(code, cli.Code(err))
					cli.Complain(o.env, program, err)
					continue
				}
				fmt.Fprintf(o.env.Stdout, "%s: %s is valid: %s of %s, driver %s\n", file, e.Ref(),
					cli.Count(e.Count(), "node"), cli.Count(len(e.Roles), "role"), e.Driver())
			}
			if code == cli.ExitDone {
				return nil
			}
			return &cli.SilentError{Code: code} // all messages are printed
		},
	}
	f.add(cmd)
	return cmd
}

func newEnvSchema(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "schema [cloud]", Short: "Print the JSON Schema of environment or cloud files",
		Args: arguments(0, 1, "takes no argument, or cloud"),
		RunE: func(_ *cobra.Command, args []string) error {
			schema := environments.Schema()
			if len(args) == 1 {
				if args[0] != "cloud" {
					return cli.Usagef("cannot print a schema of %s: give no argument, or cloud", quoted(args[0]))
				}
				schema = environments.CloudSchema()
			}
			_, err := io.WriteString(o.env.Stdout, schema)
			return err
		},
	}
}

// maxEnvironmentFile limits the bytes read from a file. environments.Load reports a file that is too large.
const maxEnvironmentFile = 8 << 20

// envFileFlags are the parts of an environment that are not in its file.
type envFileFlags struct {
	cloud, stack string
	sets         []string
}

func (f *envFileFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.cloud, "cloud", "", "name of the cloud, described in ../clouds/NAME.yaml beside the folder of the file")
	c.Flags().StringVar(&f.stack, "stack", "", "stack of the environment, instead of the file's")
	c.Flags().StringArrayVar(&f.sets, "set", nil, "override one value for this run, as in compute.cardinality=5; may be repeated")
}

// environmentFile returns the path of an environment's file, relative to the top of a control repository.
func environmentFile(ref model.Ref) string {
	return filepath.Join("environments", ref.Environment+".yaml")
}

// namesFile reports whether an argument is a file and not an environment's name.
func namesFile(arg string) bool {
	ext := filepath.Ext(arg)
	return ext == ".yaml" || ext == ".yml" || strings.ContainsRune(arg, filepath.Separator)
}

// ref parses the name of an environment, and adds the stack of the flag.
func (f envFileFlags) ref(name string) (model.Ref, error) {
	ref, err := model.ParseRef(name)
	if err == nil && f.stack != "" && ref.Stack != f.stack {
		if ref.Stack != "" {
			return ref, cli.Usagef("--stack %s excludes %s, which is of another stack", f.stack, ref)
		}
		ref, err = model.ParseRef(ref.Environment + "@" + f.stack)
	}
	if err != nil {
		return ref, cli.Usagef("%v", err)
	}
	return ref, nil
}

// readEnvironment reads and checks the environment that a file and the flags describe, without contacting etcd. A name
// selects its file, relative to the top of a control repository.
func (o *options) readEnvironment(file string, f envFileFlags) (*environments.Environment, error) {
	named := !namesFile(file)
	if named {
		ref, err := f.ref(file)
		if _, exists := os.Stat(file); err != nil && exists == nil {
			return nil, cli.Usagef("cannot use %s as an environment file: its name does not end in .yaml\na stored plan needs its flag: `pulley env apply --plan %s`", file, file)
		}
		if err != nil {
			return nil, err
		}
		file, f.stack = environmentFile(ref), ref.Stack
	}
	data, err := bounded.ReadFile(file, maxEnvironmentFile)
	if named && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the environment: %w\nrun the command in the folder of the control repository, or give the file", err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the environment: %w", err)
	}
	load := environments.LoadOptions{File: environments.Source{Name: file, Data: data}, Sets: f.sets, Stack: f.stack, Expression: where.Check}
	if f.cloud != "" {
		if load.Cloud, err = readCloud(file, f.cloud); err != nil {
			return nil, err
		}
	}
	e, err := environments.Load(load)
	if err == nil {
		o.fleet.Used = e.Ref().String()
	}
	return e, err
}

// readCloud reads clouds/<name>.yaml beside the environment's folder.
func readCloud(file, name string) (*environments.Source, error) {
	if err := model.CheckCloud(name); err != nil {
		return nil, cli.Usagef("%v", err)
	}
	folder := filepath.Join(filepath.Dir(file), "..", "clouds")
	path := filepath.Join(folder, name+".yaml")
	data, err := bounded.ReadFile(path, maxEnvironmentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read cloud %s: %w\n%s", name, err, cloudsIn(folder))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read cloud %s: %w", name, err)
	}
	return &environments.Source{Name: path, Data: data}, nil
}

// cloudsIn lists the clouds of a folder.
func cloudsIn(folder string) string {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		return "describe the cloud in " + filepath.Join(folder, "NAME.yaml")
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return "known clouds: " + strings.Join(names, ", ")
}

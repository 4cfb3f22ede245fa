package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/release"
	"pulley/internal/specs"
)

// The limits of a completion: a shell waits for it at every key. Without an answer in time there is no suggestion.
const (
	completionTime  = 120 * time.Millisecond
	completionNames = 60 // zsh takes up to a millisecond for each
)

// lister lists the names that begin with a prefix, at most completionNames.
type lister func(ctx context.Context, s *etcd.DB, prefix string) ([]string, error)

// completer completes names in a shell.
type completer struct{ *options }

// addCompletions completes flags and first arguments, by their names in the usage: nodes, versions, environments and contexts.
func (o completer) addCompletions(c *cobra.Command) {
	flags := map[string]cobra.CompletionFunc{
		"environment": o.fromEtcd(o.environmentNames), "role": o.fromFile((*environments.Environment).RoleNames), "node": o.fromEtcd(o.nodeNames),
		"application": o.fromFile((*environments.Environment).ApplicationNames), "instance": o.fromFile((*environments.Environment).InstanceNames),
		"graph":   cobra.FixedCompletions([]string{"dot", "mermaid"}, cobra.ShellCompDirectiveNoFileComp),
		"context": o.contextNames, "output": cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp),
		"state": cobra.FixedCompletions(strings.Split(fleet.States(), ", "), cobra.ShellCompDirectiveNoFileComp),
	}
	switch c.Name() {
	case "userdata":
		flags["group"] = o.fromFile((*environments.Environment).RoleNames)
	case "facts":
		flags["group"] = cobra.NoFileCompletions // a path of a fact
		c.ValidArgsFunction = o.factArguments
	}
	for name, complete := range flags {
		if c.LocalFlags().Lookup(name) != nil {
			_ = c.RegisterFlagCompletionFunc(name, complete) // fails only for a flag that does not exist
		}
	}
	verb, argument, _ := strings.Cut(c.Use, " ")
	argument, _, _ = strings.Cut(strings.Trim(argument, "["), " ")
	var complete cobra.CompletionFunc
	switch argument = strings.TrimRight(argument, "].…"); {
	case argument == "NODE":
		complete = o.fromEtcd(o.nodeNames)
	case argument == "VERSION" && c.Parent().Name() == "agents":
		complete = o.fromEtcd(func(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
			return release.In(s).AgentNames(ctx, prefix, completionNames)
		})
	case argument == "VERSION":
		complete = o.fromEtcd(func(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
			return release.In(s).Names(ctx, prefix, completionNames)
		})
	case argument == "ENVIRONMENT":
		complete = o.fromEtcd(o.environmentNames)
	case argument == "NAME" && c.Parent().Name() == "context":
		complete = o.contextNames
	case strings.HasPrefix(argument, "FILE"):
		complete = nil // the shell's own
	case !c.HasSubCommands() && (argument == "" || strings.HasPrefix(argument, "-")) && verb != "":
		complete = cobra.NoFileCompletions
	}
	if complete != nil && c.ValidArgsFunction == nil {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !strings.HasSuffix(strings.TrimRight(c.Use, "]"), "...") {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return complete(c, args, prefix)
		}
	}
	for _, sub := range c.Commands() {
		o.addCompletions(sub)
	}
}

// fromEtcd completes with names in etcd. It prints no error: the user is still typing.
func (o completer) fromEtcd(list lister) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		o.readContext()
		if o.connect() != nil {
			return nil, directive
		}
		config := o.connection.Config()
		config.Timeout = completionTime
		s, err := etcd.Open(config)
		if err != nil {
			return nil, directive
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTime)
		defer cancel()
		names, err := list(ctx, s, prefix)
		if err != nil {
			names = nil
		}
		_ = s.Close() // nothing was written
		return names, directive
	}
}

func (o completer) environmentNames(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
	all, err := specs.In(s).List(ctx)
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) }), err
}

// fromFile completes with names of the environment file, as it is stored.
func (o completer) fromFile(names func(*environments.Environment) []string) cobra.CompletionFunc {
	return o.fromEtcd(func(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
		ref, err := o.fleet.Ref(o.env)
		if err != nil {
			return nil, err
		}
		e, _, err := specs.In(s).Spec(ctx, ref)
		if err != nil || e == nil {
			return nil, err
		}
		return slices.DeleteFunc(names(e), func(name string) bool { return !strings.HasPrefix(name, prefix) }), nil
	})
}

// nodeNames lists nodes of the host list and, if they are few, those that the environment calls for.
func (o completer) nodeNames(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
	ref, err := o.fleet.Ref(o.env)
	if err != nil {
		return nil, err
	}
	names, err := fleet.In(s).HostNames(ctx, ref, prefix, completionNames)
	if err != nil || len(names) > 0 {
		return names, err
	}
	e, _, err := specs.In(s).Spec(ctx, ref)
	if err != nil || e == nil {
		return nil, err
	}
	return wantedNodes(e, prefix), nil
}

// wantedNodes lists the first nodes of an environment that begin with a prefix.
func wantedNodes(e *environments.Environment, prefix string) (names []string) {
	for n := range e.Nodes() {
		if name := n.String(); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		if len(names) == completionNames || n.Num > 100*completionNames {
			break
		}
	}
	return names
}

// factArguments completes a node, and then the path of one of its facts, name by name.
func (o completer) factArguments(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return o.fromEtcd(o.nodeNames)(c, args, prefix)
	case 1:
		paths, directive := o.fromEtcd(func(ctx context.Context, s *etcd.DB, prefix string) ([]string, error) {
			ref, err := o.fleet.Ref(o.env)
			if err != nil {
				return nil, err
			}
			n, err := fleet.FactsOf(ctx, s, ref, args[0])
			return n.Complete(prefix, completionNames), err
		})(c, args, prefix)
		if len(paths) == 1 && strings.HasSuffix(paths[0], ".") { // the next name follows
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return paths, directive
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (o completer) contextNames(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	file, err := o.contextFile()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(file.Names(), func(name string) bool { return !strings.HasPrefix(name, prefix) }), cobra.ShellCompDirectiveNoFileComp
}

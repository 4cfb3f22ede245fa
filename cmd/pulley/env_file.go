package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/bounded"
	"pulley/internal/cli"
)

// maxEnvironmentFile limits the bytes read from a file. environments.Load reports a file that is too large.
const maxEnvironmentFile = 8 << 20

// envFileFlags are the parts of an environment that are not in its file.
type envFileFlags struct {
	cloud, stack string
	sets         []string
}

func (f *envFileFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.cloud, "cloud", "", "name of the cloud, whose words are in ../clouds/NAME.yaml, seen from the file")
	c.Flags().StringVar(&f.stack, "stack", "", "stack of the environment, in the place of the file's")
	c.Flags().StringArrayVar(&f.sets, "set", nil, "change one value for this once, like compute.cardinality=5; may be given again")
}

// environmentFile returns the path of an environment's file, relative to the top of a control repository.
func environmentFile(ref environments.Ref) string {
	return filepath.Join("environments", ref.Environment+".yaml")
}

// namesFile reports whether an argument is a file and not an environment's name.
func namesFile(arg string) bool {
	ext := filepath.Ext(arg)
	return ext == ".yaml" || ext == ".yml" || strings.ContainsRune(arg, filepath.Separator)
}

// of returns the flags with this fleet's reference.
func (f envFileFlags) of(ref environments.Ref) envFileFlags {
	if ref.Stack != "" {
		f.stack = ref.Stack
	}
	return f
}

// readEnvironment reads and checks the environment that a file and the flags describe, without contacting etcd. A name
// selects its file, relative to the top of a control repository.
func (o *options) readEnvironment(_ *cobra.Command, file string, f envFileFlags) (*environments.Environment, error) {
	if ref, err := environments.ParseRef(file); err == nil && !namesFile(file) {
		if f.stack != "" && ref.Stack != "" && f.stack != ref.Stack {
			return nil, cli.Usagef("%s is of stack %s, and --stack says %s", ref, ref.Stack, f.stack)
		}
		file, f = environmentFile(ref), f.of(ref)
	}
	data, err := bounded.ReadFile(file, maxEnvironmentFile)
	if _, bad := environments.ParseRef(file); errors.Is(err, fs.ErrNotExist) && bad != nil && !namesFile(file) {
		return nil, cli.Usagef("cannot read the environment: %v", bad)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the environment: %w", err)
	}
	load := environments.LoadOptions{File: environments.Source{Name: file, Data: data}, Sets: f.sets, Stack: f.stack}
	if f.cloud != "" {
		if load.Cloud, err = readCloud(file, f.cloud); err != nil {
			return nil, err
		}
	}
	return environments.Load(load)
}

// readCloud reads clouds/<name>.yaml beside the environment's folder.
func readCloud(file, name string) (*environments.Source, error) {
	if err := environments.CheckCloud(name); err != nil {
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
		return "write what the provider calls things to " + filepath.Join(folder, "NAME.yaml")
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return "there is " + strings.Join(names, ", ")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

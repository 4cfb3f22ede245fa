package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// DefaultSettle is how long a node waits for further changes before it runs for changed nodes.
const DefaultSettle = time.Minute

const (
	all         = "all"
	maxSettle   = 24 * time.Hour
	minAlive    = 15 * time.Minute
	maxAlive    = 720 * time.Hour
	maxFileSize = 4 << 20 // of an environment file
)

// View is what one role sees of the other nodes, by the environment file.
type View struct {
	Roles    []string // in the order of their names
	All      bool     // and every other role
	Networks []netip.Prefix
	Settle   time.Duration
	Exports  []string          // paths of facts of the nodes, in order
	Flavors  map[string]string // by role, for Hiera

	AddressFact string // path of the fact with a node's main address; "" without one

	Alive time.Duration // a node that reported within it is alive; 0: not judged

	hierarchy hieradata.Hierarchy // has the attributes
	stack     string              // of the environment; "" without one
}

// file is the part of an environment file that a view needs. A newer file may have keys that this agent does not know.
type file struct {
	Hosts settings `yaml:"hosts"`
	Roles map[string]struct {
		Flavor string    `yaml:"flavor"`
		Sees   yaml.Node `yaml:"sees"`
	} `yaml:"roles"`
}

type settings struct {
	Networks    []string `yaml:"networks"`
	Settle      string   `yaml:"settle"`
	Exports     []string `yaml:"exports"`
	AddressFact string   `yaml:"address_fact"`
	Alive       string   `yaml:"alive"`
}

// exported returns the paths of all facts that a node publishes for others, each once.
func (s settings) exported() []string {
	paths := slices.Clone(s.Exports)
	if s.AddressFact != "" {
		paths = append(paths, s.AddressFact)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (s settings) check() error {
	paths := s.exported()
	if len(paths) > maxExports {
		return fmt.Errorf("hosts.exports: %d facts are more than %d", len(paths), maxExports)
	}
	for _, path := range paths {
		if path == "" || len(path) > maxPath || !isPlain(path) {
			return fmt.Errorf("hosts.exports: %q names no fact", clip.Line(path, maxPath))
		}
	}
	return nil
}

// alive returns hosts.alive, 0 if it is not set.
func (s settings) alive() (time.Duration, error) {
	if s.Alive == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s.Alive)
	if err != nil || d != 0 && d < minAlive || d > maxAlive {
		return 0, fmt.Errorf("hosts.alive: %q is no time from %s to %s", clip.Line(s.Alive, maxPath), minAlive, maxAlive)
	}
	return d, nil
}

// ViewOf returns the view of a node by the environment file of the release in the folder tree. It is nil if the node's role
// sees no nodes. The file is a part of the release: it is signed, staged and rolled back with it.
func ViewOf(tree string, id model.Identity) (*View, error) {
	name, data, err := EnvironmentFile(tree, id.PuppetEnvironment)
	if err != nil || !mentions().Match(data) {
		return nil, err
	}
	v, err := parse(data, id.Role)
	if err == nil && v != nil {
		_, v.stack, _ = strings.Cut(id.Environment, "@")
		v.hierarchy, err = hieradata.ReadHierarchy(data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the hosts that role %s sees: %s of the release: %w", id.Role, name, err)
	}
	return v, nil
}

// mentions and exporting exclude files without the keys: most fleets have none, and each tick of a run would parse them.
var (
	mentions  = pattern.Lazy(`\bsees["']?\s*:`)
	exporting = pattern.Lazy(`\b(exports|address_fact|alive)["']?\s*:`)
)

// EnvironmentFile reads environments/<environment>.yaml of the release in the folder tree. data is nil without such a file.
func EnvironmentFile(tree, environment string) (name string, data []byte, err error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return "", nil, fmt.Errorf("cannot open the release: %w", err)
	}
	defer root.Close()
	for _, ext := range []string{".yaml", ".yml"} {
		name = filepath.Join("environments", environment+ext)
		f, err := bounded.OpenIn(root, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return name, nil, fmt.Errorf("cannot open %s of the release: %w", name, err)
		}
		defer f.Close()
		if data, err = bounded.Read(f, maxFileSize); err != nil {
			return name, nil, fmt.Errorf("cannot read %s of the release: %w", name, err)
		}
		return name, data, nil
	}
	return "", nil, nil
}

// decode reads a file. The parser is third-party, and a release must not crash the agent.
func decode(data []byte) (f file, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("unreadable YAML: %v", r)
		}
	}()
	err = yaml.Unmarshal(data, &f)
	return f, err
}

// parse reads the view of a role.
func parse(data []byte, role string) (v *View, err error) {
	f, err := decode(data)
	if err != nil {
		return nil, err
	}
	sees, err := seen(f.Roles[role].Sees)
	if err != nil || len(sees) == 0 {
		return nil, err
	}
	v = &View{All: slices.Contains(sees, all), Settle: DefaultSettle, Flavors: map[string]string{}}
	for name, r := range f.Roles {
		if !isRole(name) || !v.All && !slices.Contains(sees, name) {
			continue
		}
		v.Roles = append(v.Roles, name)
		if r.Flavor != "" {
			v.Flavors[name] = strings.ReplaceAll(r.Flavor, "%", "%{literal('%')}") // Hiera interpolates data
		}
	}
	slices.Sort(v.Roles)
	for _, text := range f.Hosts.Networks {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("hosts.networks: %w", err)
		}
		v.Networks = append(v.Networks, n)
	}
	if err := f.Hosts.check(); err != nil {
		return nil, err
	}
	v.Exports, v.AddressFact = f.Hosts.Exports, f.Hosts.AddressFact
	if v.Alive, err = f.Hosts.alive(); err != nil {
		return nil, err
	}
	if f.Hosts.Settle != "" {
		if v.Settle, err = time.ParseDuration(f.Hosts.Settle); err != nil || v.Settle < 0 || v.Settle > maxSettle {
			return nil, fmt.Errorf("hosts.settle: %q is no time up to %s", f.Hosts.Settle, maxSettle)
		}
	}
	return v, nil
}

// seen reads a list of roles, or one word.
func seen(n yaml.Node) (roles []string, err error) {
	switch n.Kind {
	case 0:
		return nil, nil
	case yaml.ScalarNode:
		roles = make([]string, 1)
		err = n.Decode(&roles[0])
	default:
		err = n.Decode(&roles)
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: sees is no list of roles", n.Line)
	}
	return roles, nil
}

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/bounded"
)

// DefaultSettle is how long a node waits for further changes before it runs for changed nodes.
const DefaultSettle = time.Minute

const (
	all         = "all"
	maxSettle   = 24 * time.Hour
	maxFileSize = 4 << 20 // of an environment file
)

// View is what one role sees of the other nodes, by the environment file.
type View struct {
	Roles    []string // in the order of their names
	All      bool     // and every other role
	Networks []netip.Prefix
	Settle   time.Duration
	Flavors  map[string]string // by role, for Hiera
}

// file is the part of an environment file that a view needs. A newer file may have keys that this agent does not know.
type file struct {
	Hosts struct {
		Networks []string `yaml:"networks"`
		Settle   string   `yaml:"settle"`
	} `yaml:"hosts"`
	Roles map[string]struct {
		Flavor string    `yaml:"flavor"`
		Sees   yaml.Node `yaml:"sees"`
	} `yaml:"roles"`
}

// ViewOf returns the view of a role by environments/<environment>.yaml of the release in the folder tree. It is nil if
// the role sees no nodes. The file is a part of the release: it is signed, staged and rolled back with it.
func ViewOf(tree, environment, role string) (*View, error) {
	name, data, err := readFile(tree, environment)
	if err != nil || !mentions.Match(data) {
		return nil, err
	}
	v, err := parse(data, role)
	if err != nil {
		return nil, fmt.Errorf("cannot read the hosts that role %s sees: %s of the release: %w", role, name, err)
	}
	return v, nil
}

// mentions excludes files without the key: most fleets have none, and each tick of a run would parse them.
var mentions = regexp.MustCompile(`\bsees["']?\s*:`)

func readFile(tree, environment string) (name string, data []byte, err error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return "", nil, fmt.Errorf("cannot open the release: %w", err)
	}
	defer root.Close()
	for _, ext := range []string{".yaml", ".yml"} {
		name = filepath.Join("environments", environment+ext)
		f, err := root.Open(name)
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

// parse reads the view of a role. The parser is third-party, and a release must not crash the agent.
func parse(data []byte, role string) (v *View, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = nil, fmt.Errorf("unreadable YAML: %v", r)
		}
	}()
	var f file
	if err := yaml.Unmarshal(data, &f); err != nil {
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

package puppet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"gopkg.in/yaml.v3"

	"pulley/environments/settings"
	"pulley/internal/bounded"
)

// LiveData is the position of live data in a release's hierarchy.
type LiveData string

// The positions of live data.
const (
	LiveDataAbove LiveData = "above" // as Puppet's global layer: live data overrides all data of the release
	// The release's hiera.yaml contains path: "%{facts.pulley.data}/node.yaml" and similar, at the positions that it
	// chooses.
	LiveDataInHierarchy LiveData = "hierarchy"
)

// ReleaseSettings is `pulley.yaml` in the root of a release: the settings of the release for Pulley.
type ReleaseSettings struct {
	LiveData LiveData `yaml:"live_data"`
	// PuppetEnvironment is the environment of a Puppet server that a reference release names: the release has no code, and its
	// runs take their catalogs from the server. "" is a release with code.
	PuppetEnvironment string `yaml:"puppet_environment"`
	// PuppetServer is the server of a reference release for all nodes, HOST or HOST:PORT. "": the environment file names the servers.
	PuppetServer string `yaml:"puppet_server"`
	// Silence contains, by rule, patterns of files whose findings `pulley validate` does not report. Nodes ignore it.
	Silence map[string][]string `yaml:"silence"`
}

// ReleaseError reports, before Puppet starts, that a release cannot run.
type ReleaseError struct {
	File string // of the release; "" means pulley.yaml
	Err  error
}

func (e *ReleaseError) Error() string {
	return "the release's " + cmp.Or(e.File, "pulley.yaml") + " is refused: " + e.Err.Error()
}
func (e *ReleaseError) Unwrap() error { return e.Err }

// maxReleaseSettings limits pulley.yaml, in bytes.
const maxReleaseSettings = 64 << 10

// ReadReleaseSettings reads pulley.yaml of the release in dir. A missing file means the defaults. An unknown or invalid
// entry is a *ReleaseError.
func ReadReleaseSettings(dir string) (ReleaseSettings, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ReleaseSettings{}, fmt.Errorf("cannot open the release: %w", err)
	}
	defer root.Close()
	f, err := bounded.OpenIn(root, "pulley.yaml")
	if errors.Is(err, os.ErrNotExist) {
		return ReleaseSettings{LiveData: LiveDataAbove}, nil
	}
	if err != nil {
		return ReleaseSettings{}, &ReleaseError{Err: err}
	}
	defer f.Close()
	data, err := bounded.Read(f, maxReleaseSettings)
	if err != nil {
		return ReleaseSettings{}, &ReleaseError{Err: err}
	}
	return ParseReleaseSettings(data)
}

// ParseReleaseSettings parses the text of a pulley.yaml strictly: an unknown entry is a *ReleaseError.
func ParseReleaseSettings(data []byte) (s ReleaseSettings, err error) {
	s.LiveData = LiveDataAbove
	defer func() { // the parser is third-party, and a release must not crash the agent
		if r := recover(); r != nil {
			err = &ReleaseError{Err: fmt.Errorf("unreadable YAML: %v", r)}
		}
	}()
	var keys map[string]yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(&keys); {
	case errors.Is(err, io.EOF):
		return s, nil
	case err != nil:
		return s, &ReleaseError{Err: err}
	case !errors.Is(d.Decode(new(yaml.Node)), io.EOF):
		return s, &ReleaseError{Err: errors.New("more than one document")}
	}
	for key, value := range keys {
		switch key {
		case "live_data":
			s.LiveData = LiveData(value.Value)
			if s.LiveData != LiveDataAbove && s.LiveData != LiveDataInHierarchy {
				return s, &ReleaseError{Err: fmt.Errorf("line %d: live_data is %q; it can be above or hierarchy", value.Line, value.Value)}
			}
		case "puppet_environment":
			if s.PuppetEnvironment = value.Value; !environmentName().MatchString(s.PuppetEnvironment) {
				return s, &ReleaseError{Err: fmt.Errorf("line %d: puppet_environment is %q, not the name of a Puppet environment: lower-case letters, digits and _ only", value.Line, value.Value)}
			}
		case "puppet_server":
			if _, err := settings.ParsePuppetServer(value.Value); err != nil {
				return s, &ReleaseError{Err: fmt.Errorf("line %d: puppet_server: %w", value.Line, err)}
			}
			s.PuppetServer = value.Value
		case "silence":
			if value.Decode(&s.Silence) != nil {
				return s, &ReleaseError{Err: fmt.Errorf("line %d: silence is not a mapping of rules to lists of paths", value.Line)}
			}
		default:
			return s, &ReleaseError{Err: fmt.Errorf("line %d: unknown key %q (there are live_data and silence)", value.Line, key)}
		}
	}
	if s.PuppetServer != "" && s.PuppetEnvironment == "" {
		return s, &ReleaseError{Err: errors.New("puppet_server stands without puppet_environment")}
	}
	return s, nil
}

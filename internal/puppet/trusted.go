package puppet

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// terminus is a facts terminus for Puppet. It sets $trusted before the compilation. Puppet has no setting for the
// extensions of a masterless run: it reads them from certificates of requests only.
//
//go:embed terminus.rb
var terminus []byte

// trustedFile is the file in the run's confdir that the terminus reads.
const trustedFile = "trusted.json"

// maxEnvironmentFile limits environments/<environment>.yaml, in bytes.
const maxEnvironmentFile = 4 << 20

// trustedSettings returns the value of $trusted for the run: {"trusted": …} as JSON, which `puppet lookup --facts` also
// takes. authenticated is "remote", as for a certificate with extensions, only if the operator supplied some. external is what
// trusted_external_command printed in the last run; a run itself starts the command.
func trustedSettings(job model.Job, external json.RawMessage) ([]byte, error) {
	extensions, err := readExtensions(job)
	if err != nil {
		return nil, err
	}
	authenticated := "local"
	if len(extensions) > 0 {
		authenticated = "remote"
	}
	hostname, domain, qualified := strings.Cut(job.Certname, ".")
	trusted := map[string]any{
		"authenticated": authenticated, "certname": job.Certname, "extensions": extensions,
		"hostname": hostname, "domain": nil, "external": external,
	}
	if qualified {
		trusted["domain"] = domain
	}
	return json.MarshalIndent(map[string]any{"trusted": trusted}, "", "  ")
}

// readExtensions returns the trusted extensions of the job's node from environments/<environment>.yaml of the release.
// The file is a part of the release, and is signed, staged and rolled back with it. The keys of the node override those
// of its role, which override those of the environment.
//
// The agent reads nothing else of the file: a newer file may have keys that this agent does not know. A file that is no
// YAML, or whose trusted extensions are no texts, is a *ReleaseError: a node without its extensions would apply another
// catalog.
func readExtensions(job model.Job) (extensions map[string]string, err error) {
	name, root, err := environmentFile(job, mentionsTrusted())
	if err != nil {
		return nil, err
	}
	extensions = map[string]string{}
	for _, part := range []*yaml.Node{root, entry(root, "roles", job.Role), entry(root, "nodes", plainName(job.Identity))} {
		own, err := texts(entry(part, "trusted"), "trusted")
		if err != nil {
			return nil, &ReleaseError{File: name, Err: err}
		}
		maps.Copy(extensions, own)
	}
	return extensions, nil
}

// environmentFile returns the mapping in environments/<environment>.yaml of the release, and the file's name. It returns
// nil without a file, and for a file that does not mention what the caller looks for.
func environmentFile(job model.Job, mentions *regexp.Regexp) (name string, root *yaml.Node, err error) {
	name, data, err := readEnvironmentFile(job)
	if err != nil || !mentions.Match(data) {
		return name, nil, err
	}
	defer func() { // the parser is third-party, and a release must not crash the agent
		if r := recover(); r != nil {
			root, err = nil, &ReleaseError{File: name, Err: fmt.Errorf("unreadable YAML: %v", r)}
		}
	}()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return name, nil, &ReleaseError{File: name, Err: err}
	}
	if len(doc.Content) == 0 {
		return name, nil, nil
	}
	return name, doc.Content[0], nil
}

// mentionsTrusted excludes files without the key: they may be no environment files of Pulley.
var mentionsTrusted = pattern.Lazy(`(?m)\btrusted\b["']?\s*:`)

func readEnvironmentFile(job model.Job) (name string, data []byte, err error) {
	root, err := os.OpenRoot(job.Tree)
	if err != nil {
		return "", nil, fmt.Errorf("cannot open the release: %w", err)
	}
	defer root.Close()
	for _, ext := range []string{".yaml", ".yml"} {
		name = filepath.Join("environments", job.PuppetEnvironment+ext)
		f, err := bounded.OpenIn(root, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return name, nil, &ReleaseError{File: name, Err: err}
		}
		defer f.Close()
		if data, err = bounded.Read(f, maxEnvironmentFile); err != nil {
			return name, nil, &ReleaseError{File: name, Err: err}
		}
		return name, data, nil
	}
	return "", nil, nil
}

// plainName returns the node's name without its stack: one environment file serves all stacks.
func plainName(id model.Identity) string {
	if _, stack, in := strings.Cut(id.Environment, "@"); in {
		return strings.TrimSuffix(id.Node, "_"+stack)
	}
	return id.Node
}

// entry returns the value at a path of keys, or nil.
func entry(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var found *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

// texts reads a mapping of texts; nil is an empty one.
func texts(n *yaml.Node, what string) (map[string]string, error) {
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: %s is not a mapping of names and texts", n.Line, what)
	}
	out := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			return nil, fmt.Errorf("line %d: %s has an entry that is not a name with a text", key.Line, what)
		}
		out[key.Value] = value.Value
	}
	return out, nil
}

package puppet

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/shellquote"
)

// ExternalNodes is the folder of a release with the answers of an external node classifier: <node>.yaml, and
// default.yaml for the other nodes. Without the folder, a node takes its classes from manifests and data only.
const ExternalNodes = "external_nodes"

// MaxExternalNode limits one answer, in bytes.
const MaxExternalNode = 1 << 20

// ExternalNode is the answer of an external node classifier. Its format:
// https://www.puppet.com/docs/puppet/8/nodes_external#enc_output_format
type ExternalNode struct {
	Environment string // Pulley ignores it: a node's environment is where it joined
	Text        []byte // the answer without the environment
}

// ParseExternalNode parses the answer of an external node classifier. It accepts what Puppet accepts: classes as a list
// of names, or a mapping of names to parameters; parameters, which become top-scope variables; and an environment.
func ParseExternalNode(data []byte) (n ExternalNode, err error) {
	defer func() { // the parser is third-party, and a release must not crash the agent
		if r := recover(); r != nil {
			err = fmt.Errorf("unreadable YAML: %v", r)
		}
	}()
	if len(data) > MaxExternalNode {
		return n, fmt.Errorf("%d bytes are too many: at most %d", len(data), MaxExternalNode)
	}
	doc, err := hieradata.Document(data)
	if err != nil {
		return n, err
	}
	if len(doc.Content) == 0 {
		return n, errors.New("it is empty; a node without classes is `classes: []`")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return n, fmt.Errorf("line %d: it is not a mapping with classes, parameters and environment", root.Line)
	}
	known := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		value := root.Content[i+1]
		var problem error
		switch strings.TrimPrefix(root.Content[i].Value, ":") {
		case "classes":
			known, problem = true, checkClasses(value)
		case "parameters":
			known = true
			if !isNull(value) && value.Kind != yaml.MappingNode {
				problem = fmt.Errorf("line %d: parameters is not a mapping", value.Line)
			}
		case "environment":
			known = true
			if n.Environment = value.Value; value.Kind != yaml.ScalarNode {
				problem = fmt.Errorf("line %d: environment is not a name", value.Line)
			}
			root.Content = append(root.Content[:i:i], root.Content[i+2:]...)
			i -= 2
		}
		if problem != nil {
			return n, problem
		}
	}
	if !known {
		return n, fmt.Errorf("line %d: it has neither classes nor parameters nor environment", root.Line)
	}
	if n.Text, err = yaml.Marshal(doc); err != nil {
		return n, err
	}
	return n, nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func checkClasses(n *yaml.Node) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode && n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: classes is neither a list of names nor a mapping of names to parameters", n.Line)
	}
	for i, one := range n.Content {
		value := n.Kind == yaml.MappingNode && i%2 == 1
		if value && !isNull(one) && one.Kind != yaml.MappingNode && one.Kind != yaml.AliasNode {
			return fmt.Errorf("line %d: the parameters of class %s are not a mapping", one.Line, n.Content[i-1].Value)
		}
		if !value && (one.Kind != yaml.ScalarNode || one.ShortTag() != "!!str") {
			return fmt.Errorf("line %d: a class is not a name", one.Line)
		}
	}
	return nil
}

// externalNode returns the answer for the job's node from its release; nil if the release has no external nodes. An
// unreadable or missing answer is a *ReleaseError: without its classes, the node would apply another catalog.
func externalNode(job model.Job) ([]byte, error) {
	if job.Code != "" {
		return nil, nil
	}
	root, err := os.OpenRoot(job.Tree)
	if err != nil {
		return nil, fmt.Errorf("cannot open the release: %w", err)
	}
	defer root.Close()
	if info, err := root.Stat(ExternalNodes); errors.Is(err, os.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, nil
	} else if err != nil {
		return nil, &ReleaseError{File: ExternalNodes, Err: err}
	}
	for _, name := range []string{job.Certname, plainName(job.Identity), "default"} {
		file := path.Join(ExternalNodes, name+".yaml")
		f, err := bounded.OpenIn(root, file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, &ReleaseError{File: file, Err: err}
		}
		defer f.Close()
		data, err := bounded.Read(f, MaxExternalNode)
		if err != nil {
			return nil, &ReleaseError{File: file, Err: err}
		}
		n, err := ParseExternalNode(data)
		if err != nil {
			return nil, &ReleaseError{File: file, Err: err}
		}
		return n.Text, nil
	}
	return nil, &ReleaseError{File: ExternalNodes, Err: fmt.Errorf("it has neither %s.yaml nor default.yaml: publish it with an answer for this node", job.Certname)}
}

// The files in the run's confdir that give Puppet the answer. Puppet's terminus for external nodes starts a command with
// the certname as its last argument.
const (
	externalNodeFile   = "external_node.yaml"
	externalNodeScript = "external_node.sh"
)

// placeExternalNode writes the answer to the folder conf, which Puppet sees as seen, and returns the settings with which Puppet reads it.
func placeExternalNode(conf, seen string, answer []byte) ([][2]string, error) {
	if answer == nil {
		return [][2]string{{"node_terminus", "plain"}}, nil
	}
	script := filepath.Join(seen, externalNodeScript)
	if strings.ContainsFunc(script, unicode.IsSpace) {
		return nil, fmt.Errorf("the state folder %q contains a blank, and Puppet divides the command of external nodes at blanks", conf)
	}
	text := "exec " + shellquote.Join([]string{"cat", filepath.Join(seen, externalNodeFile)}) + "\n"
	return [][2]string{{"node_terminus", "exec"}, {"external_nodes", "/bin/sh " + script}}, errors.Join(
		os.WriteFile(filepath.Join(conf, externalNodeFile), answer, 0o600),
		os.WriteFile(filepath.Join(conf, externalNodeScript), []byte(text), 0o600),
	)
}

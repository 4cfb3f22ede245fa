// Package enc answers the external node classifier of Puppet servers: from etcd, and without it from the answers that it kept.
//
// It must never give classes to a node that etcd does not list, name an environment of Puppet, or fail because of its kept answers.
package enc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/atomicfile"
	"pulley/internal/store"
)

// Patience is how long etcd may take where a kept answer exists: a thread of the Puppet server waits meanwhile.
const Patience = time.Second

// Answer is an answer in the format of Puppet's external node classifiers.
type Answer struct {
	Text  []byte
	Since time.Time // of a kept answer: when etcd last gave it
	Etcd  error     // why the answer is a kept one; nil for an answer of etcd

	Unkept error // why the answer could not be kept; it is valid
}

// Unknown decides what a name gets that no environment lists.
type Unknown string

// The decisions.
const (
	Fail  Unknown = "fail"  // an *UnknownError: the server compiles no catalog
	Empty Unknown = "empty" // an answer without classes: the server compiles what its own code gives to the name
)

const noClasses = environments.AnswerStart + "classes: {}\n"

// UnknownError reports a node that no environment lists, or several. No kept answer replaces it.
type UnknownError struct {
	Node    string
	In      string   // the environment that was searched; "" for all
	Several []string // the environments that list it
}

func (e *UnknownError) Error() string {
	where := "in any environment"
	switch {
	case len(e.Several) > 0:
		return fmt.Sprintf("cannot classify %s: %s have a node of this name\ngive -e ENVIRONMENT", e.Node, strings.Join(e.Several, " and "))
	case e.In != "":
		where = "in " + e.In
	}
	return fmt.Sprintf("cannot classify %s: there is no such node %s\na node is known once it has joined: `pulley status -e ENVIRONMENT` lists the nodes", e.Node, where)
}

// Cache is a folder of kept answers; "" keeps none.
type Cache string

// Classify answers for a certname in an environment; the zero Ref means any environment. When etcd fails, it returns the kept answer.
func (c Cache) Classify(ctx context.Context, s *store.Store, ref environments.Ref, certname string, unknown Unknown) (Answer, error) {
	file, named := c.file(ref, certname)
	kept, since := read(file)
	if string(kept) == noClasses && unknown != Empty { // kept by an earlier setting
		kept = nil
	}
	if kept != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	text, err := classify(ctx, s, ref, environments.NodeOf(certname))
	if of := (*UnknownError)(nil); errors.As(err, &of) {
		if kept != nil && string(kept) != noClasses { // the classes of a removed node
			_ = os.Remove(file)
		}
		if unknown != Empty || len(of.Several) > 0 {
			return Answer{}, err
		}
		text, err = []byte(noClasses), nil
	}
	switch {
	case err != nil && kept != nil:
		return Answer{Text: kept, Since: since, Etcd: err}, nil
	case err != nil || !named:
		return Answer{Text: text}, err
	}
	return Answer{Text: text, Unkept: keep(file, text, kept)}, nil
}

// read returns a kept answer and when etcd gave it; nil without one. A power cut may leave an empty file.
func read(file string) ([]byte, time.Time) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, time.Time{}
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(text, []byte(environments.AnswerStart)) {
		return nil, time.Time{}
	}
	return text, info.ModTime()
}

// keep writes an answer, or marks the kept one as new.
func keep(file string, text, kept []byte) error {
	if bytes.Equal(kept, text) {
		now := time.Now()
		return os.Chtimes(file, now, now)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteShared(file, text, 0o600) // the threads of a Puppet server ask at the same time
}

// file returns the file of a kept answer. A name that is none of a node has no file.
func (c Cache) file(ref environments.Ref, certname string) (string, bool) {
	if c == "" || certname == "" || strings.HasPrefix(certname, ".") || strings.ContainsAny(certname, "/\\\x00") || len(certname) > 255 {
		return "", false
	}
	in := ref.String()
	if ref == (environments.Ref{}) {
		in = "any"
	}
	return filepath.Join(string(c), in, certname+".yaml"), true
}

func classify(ctx context.Context, s *store.Store, ref environments.Ref, node string) ([]byte, error) {
	if ref != (environments.Ref{}) {
		return inEnvironment(ctx, s, ref, node)
	}
	names, err := s.Environments.List(ctx)
	if err != nil {
		return nil, err
	}
	var found []byte
	var in []string
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // no environment of Pulley
		}
		text, err := inEnvironment(ctx, s, ref, node)
		switch {
		case errors.As(err, new(*UnknownError)):
		case err != nil:
			return nil, err
		default:
			found, in = text, append(in, name)
		}
	}
	switch len(in) {
	case 0:
		return nil, &UnknownError{Node: node}
	case 1:
		return found, nil
	}
	return nil, &UnknownError{Node: node, Several: in}
}

// inEnvironment answers for a node of the host list. Its role comes from there, else from the environment: never from its own status.
func inEnvironment(ctx context.Context, s *store.Store, ref environments.Ref, node string) ([]byte, error) {
	state, err := s.Fleet.One(ctx, ref, node)
	if err != nil {
		return nil, err
	}
	host, listed := state.Hosts[node]
	switch {
	case len(state.Damaged) > 0 && !listed:
		return nil, fmt.Errorf("cannot classify %s: %s", node, state.Damaged[0])
	case !listed:
		return nil, &UnknownError{Node: node, In: ref.String()}
	case state.Spec == nil:
		return nil, fmt.Errorf("cannot classify %s: environment %s has no file in etcd\nrun `pulley env apply` with its file", node, ref)
	}
	role := host.Role
	if r, known := state.Spec.RoleOf(node); known && role == "" {
		role = r.Name
	}
	return state.Spec.Classify(role, node).YAML(), nil
}

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
	"pulley/internal/bounded"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
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
func (c Cache) Classify(ctx context.Context, s *etcd.DB, ref model.Ref, certname string, unknown Unknown) (Answer, error) {
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
	text, err := classify(ctx, s, ref, model.NodeOf(certname))
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
	text, err := bounded.ReadFile(file, 1<<20)
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
func (c Cache) file(ref model.Ref, certname string) (string, bool) {
	if c == "" || certname == "" || strings.HasPrefix(certname, ".") || strings.ContainsAny(certname, "/\\\x00") || len(certname) > 255 {
		return "", false
	}
	in := ref.String()
	if ref == (model.Ref{}) {
		in = "any"
	}
	return filepath.Join(string(c), in, certname+".yaml"), true
}

func classify(ctx context.Context, s *etcd.DB, ref model.Ref, node string) ([]byte, error) {
	if ref != (model.Ref{}) {
		return inEnvironment(ctx, s, ref, node)
	}
	names, err := specs.In(s).List(ctx)
	if err != nil {
		return nil, err
	}
	var in []string
	var found member
	var unreadable error
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // no environment of Pulley
		}
		m, err := find(ctx, s, ref, node)
		switch {
		case errors.As(err, new(*UnknownError)):
		case errors.As(err, new(*etcd.UnreadableError)): // it has a node of this name: which one answers is not known
			unreadable = err
		case err != nil:
			return nil, err
		default:
			found, in = m, append(in, name)
		}
	}
	switch {
	case unreadable != nil:
		return nil, unreadable
	case len(in) == 0:
		return nil, &UnknownError{Node: node}
	case len(in) > 1:
		return nil, &UnknownError{Node: node, Several: in}
	}
	return found.classify(node)
}

func inEnvironment(ctx context.Context, s *etcd.DB, ref model.Ref, node string) ([]byte, error) {
	m, err := find(ctx, s, ref, node)
	if err != nil {
		return nil, err
	}
	return m.classify(node)
}

// member is a node of a host list.
type member struct {
	ref     model.Ref
	role    string
	spec    *environments.Environment
	specErr error // it cannot be read
}

// find looks for a node in the host list of an environment. It needs nothing else that can be read there: an environment that is damaged, or
// of a newer version, must neither hide the nodes of others nor keep the classes of those that it does not list.
func find(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (member, error) {
	host, spec, specErr, err := fleet.In(s).Host(ctx, ref, node)
	switch {
	case err != nil:
		return member{}, fmt.Errorf("cannot classify %s: %w", node, err)
	case host == nil:
		return member{}, &UnknownError{Node: node, In: ref.String()}
	}
	return member{ref, host.Role, spec, specErr}, nil
}

// classify answers for a node of the host list. Its role comes from there, else from the environment: never from its own status.
func (m member) classify(node string) ([]byte, error) {
	switch {
	case m.specErr != nil:
		return nil, fmt.Errorf("cannot classify %s: %w", node, m.specErr)
	case m.spec == nil:
		return nil, fmt.Errorf("cannot classify %s: environment %s has no file in etcd\nrun `pulley env apply` with its file", node, m.ref)
	}
	role := m.role
	if r, known := m.spec.RoleOf(node); known && role == "" {
		role = r.Name
	}
	return m.spec.Classify(role, node).YAML(), nil
}

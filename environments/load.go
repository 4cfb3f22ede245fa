package environments

import (
	"errors"
	"fmt"
)

// LoadOptions are what an environment is made of.
type LoadOptions struct {
	File  Source   // environments/<environment>.yaml
	Cloud *Source  // clouds/<cloud>.yaml; nil for none
	Sets  []string // of --set: "compute.cardinality=5"
	Stack string   // of --stack, in the place of the file's; "" leaves that
}

// Source is a file that the caller has read.
type Source struct {
	Name string // as it is told in errors
	Data []byte
}

// Load reads an environment file, lays a cloud file under it, changes single values and checks the whole, also whether its
// driver can give what roles ask for. The error is an Errors with everything that was found, each with its place.
func Load(o LoadOptions) (*Environment, error) {
	return o.read(checker.checkGiven)
}

// read reads and checks an environment; more checks what came of it further.
func (o LoadOptions) read(more func(checker)) (*Environment, error) {
	var cloud *Cloud
	var ofCloud Errors
	if o.Cloud != nil {
		var err error
		if cloud, err = ParseCloud(o.Cloud.Name, o.Cloud.Data); err != nil {
			errors.As(err, &ofCloud)
		}
	}
	p := newParser(o.File.Name)
	e := &Environment{Name: p.environmentName()}
	if root := p.document(o.File.Data, "an environment", "`roles:`"); root != nil {
		if cloud != nil {
			p.under(root, cloud)
		}
		p.sets(root, o)
		p.environment(root, e)
	}
	e.check(ofCloud != nil, p.report)
	if ofCloud == nil {
		more(checker{e, false, p.report})
	}
	err := p.end()
	var ofFile Errors
	if errors.As(err, &ofFile); ofFile != nil || ofCloud != nil {
		return nil, append(ofFile, ofCloud...)
	}
	data, err := e.bytes()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", o.File.Name, err)
	}
	if flaw := sizeFlaw(len(data)); flaw != nil {
		flaw.File = o.File.Name
		return nil, Errors{flaw}
	}
	return e, nil
}

// report tells what check found, where it stands.
func (p *parser) report(at spot, flaw *Error) {
	if at.field != "name" { // said already, better
		p.problem(p.place(at), flaw.Advice, "%s", flaw.Problem)
	}
}

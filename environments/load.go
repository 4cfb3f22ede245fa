package environments

import (
	"errors"
	"fmt"
)

// LoadOptions are the sources of an environment.
type LoadOptions struct {
	File  Source   // environments/<environment>.yaml
	Cloud *Source  // clouds/<cloud>.yaml; nil for none
	Sets  []string // of --set: "compute.cardinality=5"
	Stack string   // of --stack, instead of the file's; "" keeps the file's
}

// Source is a file that the caller has read.
type Source struct {
	Name string // as errors name it
	Data []byte
}

// Load reads an environment file, adds the values of a cloud file, changes single values and checks the result. It also
// checks that the driver supports the values of roles. The error is an Errors with all problems and their positions.
func Load(o LoadOptions) (*Environment, error) {
	return o.read(checker.checkGiven)
}

// read reads and checks an environment; more makes further checks of the result.
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

// report records a problem of check at its position.
func (p *parser) report(at spot, flaw *Error) {
	if at.field != "name" { // the parser has reported it already
		p.problem(p.place(at), flaw.Advice, "%s", flaw.Problem)
	}
}

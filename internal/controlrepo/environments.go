package controlrepo

import (
	"errors"
	"path"
	"slices"

	"pulley/environments"
)

// checkClouds validates the cloud files and returns the valid ones.
func (r *reading) checkClouds() []environments.Source {
	var clouds []environments.Source
	for name, data := range r.files {
		if !isCloud(name) {
			continue
		}
		if base := path.Base(name); path.Ext(name) == ".yml" {
			r.add(Finding{File: name, Severity: Warning, Problem: "`--cloud` does not find it", Hint: "rename it to " + base[:len(base)-len(".yml")] + ".yaml"})
		}
		if err := environments.ParseCloud(name, data); err != nil {
			r.add(environmentFindings(name, err)...)
			continue
		}
		clouds = append(clouds, environments.Source{Name: name, Data: data})
	}
	return clouds
}

// load reads an environment. It must be valid alone or with one of the clouds, because no file states which clouds
// belong to it.
func load(name string, data []byte, clouds []environments.Source) (*environments.Environment, error) {
	o := environments.LoadOptions{File: environments.Source{Name: name, Data: data}}
	e, err := environments.Load(o)
	for i := 0; err != nil && i < len(clouds); i++ {
		o.Cloud = &clouds[i]
		if in, problem := environments.Load(o); problem == nil {
			return in, nil
		}
	}
	return e, err
}

func environmentFindings(file string, err error) []Finding {
	var several environments.Errors
	if !errors.As(err, &several) {
		return []Finding{{File: file, Severity: Error, Problem: err.Error()}}
	}
	out := make([]Finding, 0, len(several))
	for _, e := range several {
		out = append(out, Finding{File: file, Line: e.Line, Column: e.Column, Severity: Error, Problem: e.Problem, Hint: e.Advice})
	}
	return slices.Clip(out)
}

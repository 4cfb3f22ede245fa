package puppet

import (
	"context"
	"errors"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// ServedNode is what the release of a node says about its Puppet server.
type ServedNode struct {
	Environment string // of the server
	Settings    settings.PuppetSettings
	Server      settings.PuppetServer
	Choice      settings.Choice // without a server, the reason
}

// ServedNode returns what the job's release says about the Puppet server of its node; nil if the release has its code.
func (p *Puppet) ServedNode(ctx context.Context, job model.Job) (*ServedNode, error) {
	s, _, err := p.servedBy(ctx, job)
	if err != nil || s == nil {
		return nil, err
	}
	n := &ServedNode{Environment: s.environment, Choice: s.choice}
	if len(s.servers) > 0 {
		n.Server = s.servers[0].PuppetServer
	}
	n.Settings, _, _, err = puppetSettings(job)
	return n, err
}

// SSLDir returns the ssldir of the machine's own Puppet, which has the node's certificate for the Puppet server.
func (p *Puppet) SSLDir() string { return p.sslDir() }

// ApplyServed runs Puppet once against the server of a reference release, in another environment of the server. Errors are those
// of Apply.
func (p *Puppet) ApplyServed(ctx context.Context, job model.Job, environment string) (model.Result, error) {
	if err := errors.Join(p.Reap(ctx), p.Locks()); err != nil {
		return model.Result{}, err
	}
	vanish, err := p.appear(job.ID)
	if err != nil {
		return model.Result{}, err
	}
	defer vanish()
	s, none, err := p.servedBy(ctx, job)
	switch {
	case err != nil:
		return model.Result{}, err
	case none != nil:
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Problem: *none}, nil
	case s == nil:
		return model.Result{}, errors.New("cannot run Puppet against a server: the release has its code")
	}
	s.environment = environment
	return p.applyServed(ctx, job, s)
}

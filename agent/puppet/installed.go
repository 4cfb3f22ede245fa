package puppet

// Installed says whether there is a Puppet to run, without starting it; ErrMissing when there is none.
func (p *Puppet) Installed() error {
	_, err := p.find()
	return err
}

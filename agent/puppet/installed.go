package puppet

// Installed checks, without starting Puppet, whether it is installed. It returns ErrMissing otherwise.
func (p *Puppet) Installed() error {
	_, err := p.find()
	return err
}

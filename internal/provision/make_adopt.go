package provision

import (
	"cmp"
	"errors"
)

// adopt writes a machine of ours into the books that they don't have.
func (j *job) adopt() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	m, ok := j.machine(s)
	if !ok {
		return errors.New("its machine is gone\nlook at a new plan")
	}
	if err := j.note(Adopted, j.step.Why); err != nil {
		return err
	}
	j.since = s.No
	r := Record{Node: j.step.Node, Name: m.Name, ID: m.ID, Phase: Made, Driver: j.a.Driver, Flavor: m.Flavor, Image: m.Image, By: j.a.By, At: j.a.Now().UTC()}
	if j.record != nil { // another machine than the books say
		r.Token = j.record.Token
		r.Flavor, r.Image = cmp.Or(m.Flavor, j.record.Flavor), cmp.Or(m.Image, j.record.Image)
		if m.Flavor == "" && m.Image == "" { // for all that is known it is of the same order
			r.Tries = j.record.Tries
		}
	}
	return j.put(r)
}

// settle writes down that a machine is there which an apply before this one asked for, or sees off one that is going.
func (j *job) settle() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	j.since = s.No
	m, ok := j.machine(s)
	switch {
	case ok && m.State == Deleting: // by somebody else: there is room for another one when it is gone
		if err := j.awaitEnd("settle", m.victim()); err != nil {
			return err
		}
		return errors.New("its machine was deleted by somebody else, and is gone now\napply again to have another one made")
	case ok && j.record != nil && j.record.Phase == Making:
		return j.made(m)
	}
	return nil
}

package environments

import (
	"slices"
	"strconv"

	"pulley/internal/firstboot"
)

// checkUserdata reports the errors that package firstboot finds in the settings of a role, or of the environment.
func (c checker) checkUserdata(role int, u Userdata) {
	for _, p := range u.Problems() {
		if !p.Half {
			c.report(spot{role, "userdata." + p.Field}, userdataError(p))
		}
	}
}

// checkHalves reports settings that need another setting which neither the role nor the environment has.
func (c checker) checkHalves() {
	if c.pending {
		return
	}
	reported := map[string]bool{}
	for i, r := range c.Roles {
		for _, p := range c.UserdataOf(r).Problems() {
			if !p.Half {
				continue
			}
			at := spot{i, "userdata." + p.Field}
			if !slices.ContainsFunc(r.Userdata.Problems(), func(own *firstboot.Problem) bool { return own.Half && own.Field == p.Field }) {
				at.role = noRole
			}
			if id := strconv.Itoa(at.role) + at.field; !reported[id] {
				reported[id] = true
				c.report(at, userdataError(p))
			}
		}
	}
}

func userdataError(p *firstboot.Problem) *Error {
	return &Error{Problem: "userdata." + p.Error(), Advice: p.Advice}
}

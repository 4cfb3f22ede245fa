package trust

import (
	"fmt"
	"strings"

	version "github.com/hashicorp/go-version"
)

// Floor is what a node remembers so that nothing older than its last comes back unnoticed: the highest release and data
// that it ever attempted, or that an operator's permit let it go back to. It rises before a target is attempted.
type Floor struct {
	Environment string `json:"environment"`
	Release     string `json:"release"`  // version; "" before the first
	Data        int64  `json:"data"`     // generation; 0 before the first
	Permit      int64  `json:"permit"`   // epoch of the newest permit that was used: no older one lets it go back again
	Required    bool   `json:"required"` // signers were in force once: from then on their absence is no leave
	Proven      string `json:"proven"`   // digest of the data record that was last proven authentic; its signature is not judged again
}

// Target is where a node is sent, as far as the floor is concerned.
type Target struct {
	Environment string // the node's own, with its stack
	Release     string // version
	Tree        string // hash of its tree
	Data        int64  // generation; 0 for none
	DataDigest  string
}

// Check says whether a node may attempt t, and returns the floor to save before it does. Permits are those whose
// signatures count. Going up, or staying, is always allowed, per component; in another environment the floor starts anew.
// The error is a *RefusedError.
func (f Floor) Check(t Target, permits []Permit) (Floor, error) {
	if t.Environment == "" {
		return f, refused("nobody said which environment it is for")
	}
	if f.Environment != t.Environment {
		f = Floor{Environment: t.Environment, Required: f.Required}
	}
	next := f
	next.Release, next.Data = t.Release, t.Data
	order, err := compareVersions(t.Release, f.Release)
	if err != nil {
		return f, refused("release %q can't be told from older ones: %v", t.Release, err)
	}
	if order < 0 {
		epoch := f.newest(permits, func(p Permit) bool { return p.allowsRelease(f.Release, t) })
		if epoch == 0 {
			return f, tooOld("release "+orNone(t.Release), f.Release)
		}
		next.Permit = max(next.Permit, epoch)
	}
	if t.Data < f.Data {
		epoch := f.newest(permits, func(p Permit) bool { return p.allowsData(f.Data, t) })
		if epoch == 0 {
			return f, tooOld("data generation "+orNone(fmt.Sprint(t.Data)), fmt.Sprint(f.Data))
		}
		next.Permit = max(next.Permit, epoch)
	}
	return next, nil
}

// newest is the epoch of the newest permit for this environment that was not used up and that allows the step; 0 for none.
func (f Floor) newest(permits []Permit, allows func(Permit) bool) int64 {
	var epoch int64
	for _, p := range permits {
		if p.Environment == f.Environment && p.Epoch > f.Permit && p.Epoch > epoch && allows(p) {
			epoch = p.Epoch
		}
	}
	return epoch
}

func tooOld(what, floor string) *RefusedError {
	return &RefusedError{
		Why:  fmt.Sprintf("%s is older than %s, the highest that this node attempted, and no signed rollback allows it", what, floor),
		Next: "an operator goes back with `pulley rollback --sign-key FILE`, which writes and signs the permit",
	}
}

func orNone(s string) string {
	if s == "" || s == "0" {
		return "(none)"
	}
	return s
}

// maxVersionBytes is far more than any version has.
const maxVersionBytes = 128

// compareVersions orders versions as go-version does; "" is below all.
func compareVersions(a, b string) (int, error) {
	if a == "" || b == "" {
		return strings.Compare(a, b), nil
	}
	va, err := parseVersion(a)
	if err != nil {
		return 0, err
	}
	vb, err := parseVersion(b)
	if err != nil {
		return 0, err
	}
	return va.Compare(vb), nil
}

func parseVersion(s string) (*version.Version, error) {
	if len(s) > maxVersionBytes {
		return nil, fmt.Errorf("a version has at most %d bytes", maxVersionBytes)
	}
	return version.NewVersion(s)
}

package nodes

import (
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/model"
)

// A node under the wrong role gets the wrong catalog.
func TestNewHostTakesRoleFromNameOrFlag(t *testing.T) {
	t.Parallel()
	e, err := environments.Load(environments.LoadOptions{File: environments.Source{Name: "dev.yaml",
		Data: []byte("roles:\n  compute: {cardinality: 2, members: [web.example.com], flavor: bare-metal}\n  controller: {cardinality: 1, flavor: bare-metal}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, role, want string }{
		{"compute1", "", "compute"}, {"compute1", "compute", "compute"}, {"compute7", "compute", "compute"},
		{"compute7", "", "error: role compute has 2"}, {"compute1", "controller", "error: its name contains role compute"},
		{"web.example.com", "", "compute"}, {"web.example.com", "controller", "error: it is a member of role compute"},
		{"db.example.com", "", "error: give its role: --role ROLE"}, {"db.example.com", "controller", "controller"},
		{"db.example.com", "nothing", "error: cannot find role"}, {"bad name", "compute", "error: "},
	} {
		h, err := NewHost(e, c.name, c.role)
		want, fails := strings.CutPrefix(c.want, "error: ")
		if fails != (err != nil) || fails && !strings.Contains(err.Error(), want) || !fails && (h.Role != want || h.Node != c.name) {
			t.Errorf("%s --role %q: %+v, %v; want %s", c.name, c.role, h, err, c.want)
		}
	}
}

func TestNewRunHasIDOfItsOwn(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	a, b := NewRun("ann", "why", at), NewRun("ann", "why", at)
	if len(a.ID) != 16 || a.ID == b.ID || a.Do != model.RequestRun || a.At != at.Truncate(time.Second) || a.By != "ann" {
		t.Errorf("%+v %+v", a, b)
	}
}

package openstack

import (
	"cmp"
	"context"
	"net/url"
	"regexp"
	"slices"
	"time"

	"pulley/internal/machines"
)

// The keys of a server's metadata that are ours.
const (
	keyOwner  = "pulley-owner"
	keyFleet  = "pulley-fleet"
	keyOrder  = "pulley-order"  // of one request to make a server, by which it is known when the answer was lost
	keyFlavor = "pulley-flavor" // as the order has them: Nova tells ids only
	keyImage  = "pulley-image"
	keyNode   = "pulley-node"
	keyRole   = "pulley-role"
)

// server is what is read of a server (Compute API reference, "List Servers Detailed"; the oldest microversion).
type server struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   string            `json:"status"`
	Task     string            `json:"OS-EXT-STS:task_state"`
	Created  time.Time         `json:"created"`
	Metadata map[string]string `json:"metadata"`
	Fault    struct {
		Message string `json:"message"`
	} `json:"fault"`
	Addresses map[string][]struct {
		Address string `json:"addr"`
	} `json:"addresses"`
}

// List returns the fleet's machines.
func (d *Driver) List(ctx context.Context) ([]machines.Machine, error) {
	servers, err := d.servers(ctx, "")
	if err != nil {
		return nil, cannot(err, "list servers")
	}
	var machines []machines.Machine
	for _, s := range servers {
		if d.ours(s) && !gone(s) {
			machines = append(machines, machine(s))
		}
	}
	return machines, nil
}

// servers returns the project's servers, all or those of one name.
func (d *Driver) servers(ctx context.Context, name string) ([]server, error) {
	query := url.Values{} // without a limit: see whole
	if name != "" {
		if err := d.whole(ctx, time.Now().Add(-wholeFor)); err != nil {
			return nil, err
		}
		query.Set("name", "^"+regexp.QuoteMeta(name)+"$") // Nova's filter is a regular expression
	}
	all, err := pages(func(s server) string { return s.ID }, func(marker string) ([]server, bool, error) {
		query.Del("marker")
		if marker != "" {
			query.Set("marker", marker)
		}
		return d.page(ctx, "servers/detail", query)
	})
	if err == nil && len(query) > 0 { // else the only page has said it
		err = d.whole(ctx, time.Now())
	}
	if err != nil {
		return nil, err
	}
	// Databases compare names without case.
	return slices.DeleteFunc(all, func(s server) bool { return name != "" && s.Name != name }), nil
}

// ours reports whether a server bears the fleet's mark.
func (d *Driver) ours(s server) bool {
	return s.Metadata[keyOwner] == d.config.Mark.Owner && s.Metadata[keyFleet] == d.config.Mark.Fleet
}

func machine(s server) machines.Machine {
	m := machines.Machine{
		Name: s.Name, ID: s.ID, Created: s.Created,
		Flavor: s.Metadata[keyFlavor], Image: s.Metadata[keyImage],
	}
	m.State, m.Problem = state(s)
	for _, network := range s.Addresses {
		for _, a := range network {
			m.Addresses = append(m.Addresses, a.Address)
		}
	}
	slices.Sort(m.Addresses)
	return m
}

// oldest orders servers of one name: the one that was there first is the node.
func oldest(a, b server) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

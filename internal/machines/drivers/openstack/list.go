package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// The keys of a server's metadata that are ours.
const (
	keyOwner  = "pulley-owner"
	keyFleet  = "pulley-fleet"
	keyOrder  = "pulley-order"  // of one order: identifies its server when the answer was lost
	keyFlavor = "pulley-flavor" // as in the order: Nova returns ids only
	keyImage  = "pulley-image"
	keyNode   = "pulley-node"
	keyRole   = "pulley-role"
)

// server has the fields that are read of a server (Compute API reference, "List Servers Detailed"; the oldest microversion).
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
		return nil, cause(err)
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
	query := url.Values{} // without a limit: see complete
	if name != "" {
		if err := d.complete(ctx, time.Now().Add(-completeFor)); err != nil {
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
	if err == nil && len(query) > 0 { // else the only page has shown it
		err = d.complete(ctx, time.Now())
	}
	if err != nil {
		return nil, err
	}
	// Nova's database ignores case.
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

// oldest orders servers of one name: the first one is the node.
func oldest(a, b server) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// partialSince is the microversion since which Nova's lists have the servers of cells that are down (Compute API guide, "Handling
// down cells"), where the request has no filter, limit or marker. Before, Nova omits them, and a plan would create them again.
const partialSince = "2.69"

// completeFor is how long before a request a complete answer still counts.
const completeFor = 10 * time.Second

var errPart = errors.New("a part of the cloud is down, and its servers cannot be listed\ntry again when all of the cloud is up")

// complete fails while a part of the cloud cannot be listed, unless a request after that time had a complete answer. A list with a
// filter or a marker needs it before and after: a cell that goes down in between is missing. Calls run one after the other, and most of
// many find that an earlier one has answered.
func (d *Driver) complete(ctx context.Context, after time.Time) error {
	select {
	case d.looking <- struct{}{}:
		defer func() { <-d.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	known := d.oldNova || d.completeAt.After(after)
	d.mu.Unlock()
	if known {
		return nil
	}
	_, _, err := d.page(ctx, "servers", url.Values{})
	return err
}

// page reads one page of a list of servers, and whether there is a next one.
func (d *Driver) page(ctx context.Context, path string, query url.Values) ([]server, bool, error) {
	d.mu.Lock()
	old := d.oldNova
	d.mu.Unlock()
	client := *d.compute
	if !old {
		client.Microversion = partialSince
	}
	asked := time.Now()
	page, more, err := read[server](ctx, &client, client.ServiceURL(path)+"?"+query.Encode(), "servers")
	if gophercloud.ResponseCodeIs(err, http.StatusNotAcceptable) && !old {
		d.mu.Lock()
		d.oldNova = true
		d.mu.Unlock()
		return d.page(ctx, path, query)
	}
	if err != nil {
		return nil, false, err
	}
	for _, s := range page {
		if s.Name == "" {
			return nil, false, errPart
		}
	}
	if len(query) == 0 {
		d.mu.Lock()
		d.completeAt = asked
		d.mu.Unlock()
	}
	return page, more, nil
}

// maxBegins bounds how often a list is read from its beginning, where the server at the end of a page was deleted.
const maxBegins = 3

var (
	errMarker = errors.New("the last server of a page was deleted before the next page was read")
	errStuck  = errors.New("the cloud repeats a page of its list\ncheck for a proxy that removes `marker` from addresses")
)

// link is a reference in an answer. Only its rel is used: a proxy may make its address wrong.
type link struct {
	Rel string `json:"rel"`
}

// get reads url into answer.
func get(ctx context.Context, client *gophercloud.ServiceClient, url string, answer any) error {
	_, err := client.Get(ctx, url, answer, nil)
	return err
}

// read reads the list under a key of an answer, and whether it has another page. An answer without the list is an error, and no empty
// list: it may come from a proxy, and missing machines are created again.
func read[T any](ctx context.Context, client *gophercloud.ServiceClient, url, key string) (page []T, more bool, err error) {
	var answer map[string]json.RawMessage
	if err := get(ctx, client, url, &answer); err != nil {
		return nil, false, err
	}
	var list *[]T
	if raw, ok := answer[key]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, false, fmt.Errorf("cannot decode %q of the cloud's answer: %w", key, err)
		}
	}
	if list == nil {
		return nil, false, fmt.Errorf("the cloud's answer has no list of %q", key)
	}
	var links []link
	if raw, ok := answer[key+"_links"]; ok {
		if err := json.Unmarshal(raw, &links); err != nil {
			return nil, false, fmt.Errorf("cannot decode the links of the cloud's answer: %w", err)
		}
	}
	return *list, slices.ContainsFunc(links, func(l link) bool { return l.Rel == "next" }), nil
}

// pages reads a list of Nova to its end. page reads the part after a marker: an id, or "" for the beginning.
func pages[T any](id func(T) string, page func(marker string) ([]T, bool, error)) (all []T, err error) {
	for range maxBegins {
		all, err = once(id, page)
		if !errors.Is(err, errMarker) {
			break
		}
	}
	return all, err
}

// once reads a list from its beginning. A server that moves to another page meanwhile is returned once.
func once[T any](id func(T) string, page func(marker string) ([]T, bool, error)) ([]T, error) {
	var all []T
	seen := map[string]bool{}
	for marker := ""; ; {
		things, more, err := page(marker)
		switch {
		case marker != "" && gophercloud.ResponseCodeIs(err, http.StatusBadRequest): // only the marker differs from the request before
			return nil, errMarker
		case err != nil:
			return nil, err
		}
		before := len(all)
		for _, t := range things {
			if !seen[id(t)] {
				seen[id(t)] = true
				all = append(all, t)
			}
		}
		switch {
		case !more:
			return all, nil
		case len(all) == before:
			return nil, errStuck
		}
		marker = id(things[len(things)-1])
	}
}

// states of Nova's statuses (Compute API guide, "Server concepts"). A server that a person has changed on purpose, such as a suspended
// one, is Unknown and not Stopped: it must not be created again.
var states = map[string]machines.State{
	"ACTIVE":        machines.Running,
	"BUILD":         machines.Building,
	"REBUILD":       machines.Building,
	"REBOOT":        machines.Running,
	"HARD_REBOOT":   machines.Running,
	"PASSWORD":      machines.Running,
	"RESIZE":        machines.Running,
	"REVERT_RESIZE": machines.Running,
	"VERIFY_RESIZE": machines.Running,
	"MIGRATING":     machines.Running,

	"SHUTOFF": machines.Stopped,
	"ERROR":   machines.Failed,

	"PAUSED":            machines.Unknown,
	"SUSPENDED":         machines.Unknown,
	"RESCUE":            machines.Unknown,
	"SHELVED":           machines.Unknown,
	"SHELVED_OFFLOADED": machines.Unknown,
	"UNKNOWN":           machines.Unknown,

	"DELETED":      machines.Deleting,
	"SOFT_DELETED": machines.Deleting,
}

// gone reports whether a server is deleted and still listed for a while.
func gone(s server) bool { return s.Status == "DELETED" || s.Status == "SOFT_DELETED" }

// state returns the state of a server, and the cause where it does not run.
func state(s server) (machines.State, string) {
	if strings.Contains(s.Task, "deleting") { // deleting, soft-deleting
		return machines.Deleting, ""
	}
	state, known := states[s.Status]
	switch {
	case !known:
		return machines.Unknown, "the cloud reports an unknown status: " + clean(s.Status)
	case state == machines.Failed:
		if s.Fault.Message == "" {
			return state, "the cloud reports ERROR without a cause"
		}
		return state, clean(s.Fault.Message)
	case state == machines.Unknown:
		return state, "the cloud reports " + s.Status
	}
	return state, ""
}

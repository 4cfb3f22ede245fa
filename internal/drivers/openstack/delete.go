package openstack

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// Delete asks for the end of a server. Its mark is read just before: an id alone is no reason to delete anything.
func (d *Driver) Delete(ctx context.Context, v machines.Ref) error {
	if v.Name == "" {
		return fmt.Errorf("cannot delete a server: %w: it has no name", machines.ErrRefused)
	}
	servers, err := d.victims(ctx, v)
	if err != nil {
		return cannot(err, "look for server %s", v.Name)
	}
	for _, s := range servers {
		if !d.ours(s) || s.Name != v.Name {
			if v.ID == "" {
				continue
			}
			return fmt.Errorf("cannot delete server %s: %w: it is %q, and not a machine of this fleet called %s",
				v.ID, machines.ErrRefused, clean(s.Name), v.Name)
		}
		if now, _ := state(s); now == machines.Deleting {
			continue
		}
		_, err := d.compute.Delete(ctx, d.compute.ServiceURL("servers", s.ID), nil)
		if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return cannot(err, "delete server %s (%s)", v.Name, s.ID)
		}
	}
	return nil
}

// victims returns the server of an id, or those of a name.
func (d *Driver) victims(ctx context.Context, v machines.Ref) ([]server, error) {
	if v.ID == "" {
		return d.servers(ctx, v.Name)
	}
	if !uuidPattern.MatchString(v.ID) { // it would be a part of the address
		return nil, fmt.Errorf("%w: %q is not the id of a server", machines.ErrRefused, v.ID)
	}
	var answer struct {
		Server server `json:"server"`
	}
	err := get(ctx, d.compute, d.compute.ServiceURL("servers", v.ID), &answer)
	switch {
	case gophercloud.ResponseCodeIs(err, http.StatusNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !strings.EqualFold(answer.Server.ID, v.ID): // of a proxy: it says nothing of the server
		return nil, fmt.Errorf("the cloud's answer has no server %s", v.ID)
	case answer.Server.Name == "":
		return nil, errPart
	}
	return []server{answer.Server}, nil
}

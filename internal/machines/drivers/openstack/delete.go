package openstack

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// Delete deletes a server. It reads the mark just before: an id alone is not enough.
func (d *Driver) Delete(ctx context.Context, v machines.Ref) error {
	if v.Name == "" {
		return fmt.Errorf("%w: the name is empty", machines.ErrRefused)
	}
	servers, err := d.named(ctx, v)
	if err != nil {
		return fmt.Errorf("cannot find the server: %w", cause(err))
	}
	for _, s := range servers {
		if !d.ours(s) || s.Name != v.Name {
			if v.ID == "" {
				continue
			}
			return fmt.Errorf("%w: server %s is %q, not %s of this fleet", machines.ErrRefused, v.ID, clean(s.Name), v.Name)
		}
		if now, _ := state(s); now == machines.Deleting {
			continue
		}
		_, err := d.compute.Delete(ctx, d.compute.ServiceURL("servers", s.ID), nil)
		if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return fmt.Errorf("server %s: %w", s.ID, cause(err))
		}
	}
	return nil
}

// named returns the server of an id, or those of a name.
func (d *Driver) named(ctx context.Context, v machines.Ref) ([]server, error) {
	if v.ID == "" {
		return d.servers(ctx, v.Name)
	}
	if !uuidPattern.MatchString(v.ID) { // it becomes a part of the address
		return nil, fmt.Errorf("%w: %q is not an id", machines.ErrRefused, v.ID)
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
	case !strings.EqualFold(answer.Server.ID, v.ID): // such as the answer of a proxy
		return nil, fmt.Errorf("the cloud's answer has no server %s", v.ID)
	case answer.Server.Name == "":
		return nil, errPart
	}
	return []server{answer.Server}, nil
}

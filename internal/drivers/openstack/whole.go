package openstack

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// wholeSince is the microversion since which Nova says that it can't see some of its servers, because the part of the cloud
// that has them is down (Compute API guide, "Handling down cells"). Before, it leaves them out, as if they were gone, and
// someone would make them again. It says so only where a list has no filter, no limit and no marker.
const wholeSince = "2.69"

// wholeFor is how long a cloud is taken to have been whole before it was seen to be.
const wholeFor = 10 * time.Second

var errPart = errors.New("a part of the cloud is down, and its servers can't be seen\ntry again when the cloud is whole")

// whole fails while a part of the cloud can't be seen, unless all of it was in an answer that was asked for after a time. Who
// reads a list with a filter or a marker asks before and afterwards: a cell that goes down in between is not in it. Forty who
// ask at once ask one after the other, and most find that they need not any more.
func (d *Driver) whole(ctx context.Context, after time.Time) error {
	select {
	case d.looking <- struct{}{}:
		defer func() { <-d.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	known := d.oldNova || d.wholeAt.After(after)
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
		client.Microversion = wholeSince
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
		d.wholeAt = asked
		d.mu.Unlock()
	}
	return page, more, nil
}

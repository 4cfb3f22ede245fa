package puppetserver

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"pulley/internal/pki/connect"
)

// DefaultPuppetDBPort is the port of PuppetDB where its URL names none.
const DefaultPuppetDBPort = "8081"

// processing is the time in seconds that PuppetDB has for a command. Without it, PuppetDB answers before it tries.
const processing = "20"

// NewPuppetDB returns a client of the PuppetDB at a URL. Its certificate is of the Puppet CA, as are the client's own.
func NewPuppetDB(address string, own Credentials, now func() time.Time) (*Client, error) {
	if u, err := url.Parse(address); err == nil && u.Port() == "" && u.Hostname() != "" {
		u.Host += ":" + DefaultPuppetDBPort
		address = u.String()
	}
	c, err := New(address, own, now)
	if err != nil {
		return nil, err
	}
	c.server = connect.PuppetDB
	return c, nil
}

// Deactivate deactivates a node in PuppetDB, also one that PuppetDB does not know, and checks that it is inactive. It may be repeated.
// The form of the command: https://www.puppet.com/docs/puppetdb/8/commands.html and deactivate_node_format_v3.html.
func (c *Client) Deactivate(ctx context.Context, certname string, at time.Time) error {
	doing, stamp := "deactivate "+certname+" in PuppetDB", at.UTC().Format("2006-01-02T15:04:05.000Z")
	command := url.Values{"command": {"deactivate_node"}, "version": {"3"}, "certname": {certname}, "producer-timestamp": {stamp}, "secondsToWaitForCompletion": {processing}}
	r := request{doing: doing, method: http.MethodPost, path: "/pdb/cmd/v1?" + command.Encode(), accept: typeJSON, contentType: typeJSON}
	var err error
	if r.body, err = json.Marshal(map[string]string{"certname": certname, "producer_timestamp": stamp}); err != nil {
		return err
	}
	a, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return c.refused(r, a)
	}

	// PuppetDB reports success too where it ignored the command, because it has data of the node with a later time.
	r = request{doing: doing, method: http.MethodGet, path: "/pdb/query/v4/nodes/" + url.PathEscape(certname), accept: typeJSON}
	if a, err = c.do(ctx, r); err != nil {
		return err
	}
	var node struct {
		Certname             string
		Deactivated, Expired *time.Time
	}
	switch {
	case a.status == http.StatusNotFound && json.Valid(a.body): // it was purged
		return nil
	case a.status != http.StatusOK:
		return c.refused(r, a)
	case json.Unmarshal(a.body, &node) != nil || node.Certname != certname:
		return &Error{Code: Unreadable, Doing: doing, URL: c.URL, Text: "it is not a node"}
	case node.Deactivated == nil && node.Expired == nil:
		return &Error{Code: StillActive, Doing: doing, URL: c.URL, Name: certname, Text: stamp}
	}
	return nil
}

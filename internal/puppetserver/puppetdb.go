package puppetserver

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// DefaultPuppetDBPort is the port of PuppetDB where its URL names none.
const DefaultPuppetDBPort = "8081"

// NewPuppetDB returns a client of the PuppetDB at a URL. Its certificate is of the Puppet CA, as are the client's own.
func NewPuppetDB(address string, own Credentials, now func() time.Time) (*Client, error) {
	if u, err := url.Parse(address); err == nil && u.Port() == "" && u.Hostname() != "" {
		u.Host += ":" + DefaultPuppetDBPort
		address = u.String()
	}
	return New(address, own, now)
}

// Deactivate deactivates a node in PuppetDB, also one that PuppetDB does not know. It may be repeated. The form of the command:
// https://www.puppet.com/docs/puppetdb/8/commands.html and deactivate_node_format_v3.html.
func (c *Client) Deactivate(ctx context.Context, certname string, at time.Time) error {
	r := request{doing: "deactivate " + certname + " in PuppetDB", method: http.MethodPost, path: "/pdb/cmd/v1", accept: typeJSON, contentType: typeJSON}
	var err error
	if r.body, err = json.Marshal(map[string]any{
		"command": "deactivate node", "version": 3,
		"payload": map[string]string{"certname": certname, "producer_timestamp": at.UTC().Format("2006-01-02T15:04:05.000Z")},
	}); err != nil {
		return err
	}
	a, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	var accepted struct {
		UUID string `json:"uuid"`
	}
	switch {
	case a.status != http.StatusOK:
		return c.refused(r, a)
	case json.Unmarshal(a.body, &accepted) != nil || accepted.UUID == "":
		return &Error{Code: Unreadable, Doing: r.doing, URL: c.URL, Text: "it has no uuid of the command"}
	}
	return nil
}

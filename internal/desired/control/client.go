// Package control is what a node reads and writes in etcd: its input of a tick, its reports, and the releases and the data of its target.
// It must never read or write what operators alone use: pulley-agent links it, and not their side.
package control

import (
	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/release"
)

// Client is a node's connection to etcd.
type Client struct {
	Node     *Node
	Releases *release.Releases
	Records  *desired.Records

	db *etcd.DB
}

// Open creates a client. The first call connects, within its deadline.
func Open(c etcd.Config) (*Client, error) {
	db, err := etcd.Open(c)
	if err != nil {
		return nil, err
	}
	return &Client{In(db), release.In(db), desired.In(db), db}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.db.Close() }

// ServerIssuer returns the authority key ID of the last certificate that etcd presented. It is nil before the first connection and
// without TLS.
func (c *Client) ServerIssuer() []byte { return c.db.ServerIssuer() }

package join

import "context"

// PuppetRequest requests the certificate of a node at the CA of its Puppet servers, in up to three requests: without a part, for
// what to request; with a CSR, where the node makes its key; with the certificate, once it is on the disk.
type PuppetRequest struct {
	Machine     Machine `json:"machine"`
	CSR         string  `json:"csr,omitempty"`         // PEM
	Certificate string  `json:"certificate,omitempty"` // PEM, which the node has
}

// PuppetAnswer is what a node needs at its Puppet servers.
type PuppetAnswer struct {
	Certname   string            `json:"certname"`
	Valid      bool              `json:"valid"`                // the certificate of the request is the CA's current one
	Extensions map[string]string `json:"extensions,omitempty"` // of a request that the node makes; "" for none

	Certificate string `json:"certificate,omitempty"` // PEM
	Key         string `json:"key,omitempty"`         // PEM, of a certificate that serve made
	CA          string `json:"ca,omitempty"`          // PEM bundle
	CRL         string `json:"crl,omitempty"`         // PEM
}

// Puppet sends a request for the node's certificate at the CA of its Puppet servers.
func (c *Client) Puppet(ctx context.Context, r PuppetRequest) (PuppetAnswer, error) {
	var a PuppetAnswer
	err := c.post(ctx, PathPuppet, always(r), &a)
	return a, err
}

package serve

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"sync"
)

// AskForCertificates makes a server's configuration ask its clients for certificates of the CA, without which they may
// come too: a machine that is to join has none. Who is trusted is looked up at each handshake, as the CA may be rotated.
func (c *Certificates) AskForCertificates(t *tls.Config) {
	var mu sync.Mutex
	var bundle []byte
	var with *tls.Config
	base := t.Clone()
	t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.CA.Bundle()
		mu.Lock()
		defer mu.Unlock()
		if with == nil || !bytes.Equal(now, bundle) {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(now)
			with, bundle = base.Clone(), now
			with.ClientAuth, with.ClientCAs = tls.VerifyClientCertIfGiven, pool
		}
		return with, nil
	}
}

package server

import (
	"crypto/x509"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/pki"
)

// parseCSR reads a signing request. It refuses one with a name, because its sender would not get that name.
func parseCSR(text string) (*x509.CertificateRequest, *join.RefusedError) {
	r, err := pki.ParseCSR([]byte(text))
	switch {
	case err != nil:
		return nil, no(join.BadCSR, join.Params{Problem: agent.Prose(clip.Text(err.Error(), maxSaid))})
	case r.Subject.String() != "" || len(r.DNSNames)+len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs)+len(r.Extensions) > 0:
		return nil, no(join.CSRHasName, join.Params{})
	}
	return r, nil
}

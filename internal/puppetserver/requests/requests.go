// Package requests makes requests for certificates of a Puppet CA. pulley-agent links it: it must never know a CA.
package requests

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The arcs of Puppet's extensions: https://www.puppet.com/docs/puppet/7/ssl_attributes_extensions.
const (
	arcRegistered = "1.3.6.1.4.1.34380.1.1."
	arcPrivate    = "1.3.6.1.4.1.34380.1.2."
)

// registered are the last numbers of Puppet's registered extensions, by name.
var registered = map[string]int{
	"pp_uuid": 1, "pp_instance_id": 2, "pp_image_name": 3, "pp_preshared_key": 4, "pp_cost_center": 5, "pp_product": 6, "pp_project": 7,
	"pp_application": 8, "pp_service": 9, "pp_employee": 10, "pp_created_by": 11, "pp_environment": 12, "pp_role": 13,
	"pp_software_version": 14, "pp_department": 15, "pp_cluster": 16, "pp_provisioner": 17, "pp_region": 18, "pp_datacenter": 19,
	"pp_zone": 20, "pp_network": 21, "pp_securitypolicy": 22, "pp_cloudplatform": 23, "pp_apptier": 24, "pp_hostname": 25, "pp_owner": 26,
}

// maxValue bounds the value of an extension.
const maxValue = 1 << 10

// OID returns the object identifier of an extension that a node's certificate may have: a registered name like
// pp_role, or a number below 1.3.6.1.4.1.34380.1.1 or .2. Authorization extensions (below .3) are not among them.
func OID(name string) (asn1.ObjectIdentifier, error) {
	if n, ok := registered[name]; ok {
		name = arcRegistered + strconv.Itoa(n)
	}
	if !strings.HasPrefix(name, arcRegistered) && !strings.HasPrefix(name, arcPrivate) {
		return nil, fmt.Errorf("cannot request extension %q: certificates of nodes have registered extensions (pp_role, …) and private ones (%s…)", name, arcPrivate)
	}
	var oid asn1.ObjectIdentifier
	for part := range strings.SplitSeq(name, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || strconv.Itoa(n) != part {
			return nil, fmt.Errorf("cannot request extension %q: it is no object identifier", name)
		}
		oid = append(oid, n)
	}
	return oid, nil
}

// Encoded returns extensions as a certificate has them, by their object identifiers.
func Encoded(extensions map[string]string) (map[string]pkix.Extension, error) {
	all := map[string]pkix.Extension{}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		oid, err := OID(name)
		if err != nil {
			return nil, err
		}
		value := extensions[name]
		if !utf8.ValidString(value) || len(value) > maxValue {
			return nil, fmt.Errorf("cannot request extension %s: its value is not a text of at most %d bytes", name, maxValue)
		}
		der, err := asn1.MarshalWithParams(value, "utf8")
		if err != nil {
			return nil, fmt.Errorf("cannot request extension %s: %w", name, err)
		}
		if _, twice := all[oid.String()]; twice {
			return nil, fmt.Errorf("cannot request extension %s: it is given twice", name)
		}
		all[oid.String()] = pkix.Extension{Id: oid, Value: der}
	}
	return all, nil
}

// New returns a certificate request for a key, as PEM. It must be of a name that puppetserver.CheckName accepts. The extensions have names like pp_role.
func New(key crypto.Signer, name string, extensions map[string]string) ([]byte, error) {
	all, err := Encoded(extensions)
	if err != nil {
		return nil, err
	}
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}
	for _, oid := range slices.Sorted(maps.Keys(all)) {
		r.ExtraExtensions = append(r.ExtraExtensions, all[oid])
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate request for %s: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// NameOf returns the registered name of an extension, else its number.
func NameOf(oid asn1.ObjectIdentifier) string {
	text := oid.String()
	for name, n := range registered {
		if text == arcRegistered+strconv.Itoa(n) {
			return name
		}
	}
	return text
}

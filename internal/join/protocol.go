// Package join turns a machine into a node, with the protocol that internal/join/login uses for operators, too. It owns the protocol of both sides, and the
// client. Package server below it is the other side, which pulley-agent does not link.
//
// A key never leaves its machine. A request carries a join token and a signing request (CSR), and is bound to its TLS
// connection: a captured request is useless on another one. The client must never send a token to a server whose chain
// does not lead to a CA with one of the given pins: see pki.Pinned.
package join

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"pulley/internal/model"
	"pulley/internal/pki/connect"
)

// root begins the paths of all requests. Another version of the protocol has another root.
const root = "/v1"

// The paths below a server of `pulley serve`. All but CA are POST, with JSON in both directions.
const (
	PathJoin     = root + "/join"       // Envelope → Answer
	PathRenew    = root + "/renew"      // Renewal → Answer; with the expiring certificate
	PathRegister = root + "/register"   // Machine → nothing; with certificate
	PathLeave    = root + "/leave"      // nothing; with certificate
	PathProgress = root + "/progress"   // ProgressRequest → nothing; with certificate or token
	PathSecrets  = root + "/identities" // Machine → IdentitiesAnswer; with the certificate of a node
	PathTurn     = root + "/turn"       // Machine → TurnAnswer; with the certificate of a node
	PathPuppet   = root + "/puppet"     // PuppetRequest → PuppetAnswer; with the certificate of a node
	PathSealing  = root + "/recipients" // SealingRequest → SealingAnswer; with the certificate of an operator
	PathReveal   = root + "/secrets"    // RevealRequest → RevealAnswer; with the certificate of an administrator
	PathCA       = root + "/ca"         // GET: all trusted CA certificates, as PEM
)

// MaxBody bounds a request and an answer, in bytes.
const MaxBody = 64 << 10

// Machine is a machine's description of itself.
type Machine struct {
	ID        string   `json:"id"`                   // /etc/machine-id
	Boot      string   `json:"boot,omitempty"`       // /proc/sys/kernel/random/boot_id
	FirstBoot string   `json:"first_boot,omitempty"` // ID of its first boot: several machines may have one machine ID
	Hostname  string   `json:"hostname,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// Request is a request for a certificate. An operator's has neither node nor machine.
type Request struct {
	Token       string  `json:"token"`
	CSR         string  `json:"csr"`                   // PEM; a name in it is ignored
	Environment string  `json:"environment,omitempty"` // the machine's claim; "" means the token's
	Role        string  `json:"role,omitempty"`        // likewise
	Node        string  `json:"node,omitempty"`        // "" means the token's, else the lowest free number of its role
	Machine     Machine `json:"machine,omitzero"`
}

// Envelope is an encoded Request with the proof that it was made for this connection.
type Envelope struct {
	Request []byte `json:"request"` // a Request, as JSON
	Proof   []byte `json:"proof"`   // signature over statement, by the key of the CSR
}

// Answer is a certificate with the settings of the fleet.
type Answer struct {
	Environment string   `json:"environment,omitempty"`
	Node        string   `json:"node,omitempty"`
	Role        string   `json:"role,omitempty"`
	Operator    string   `json:"operator,omitempty"`
	As          string   `json:"as,omitempty"` // an operator's role: viewer, operator, admin
	Certificate string   `json:"certificate"`  // PEM; its CN is the user in etcd
	CA          string   `json:"ca"`           // PEM bundle of the trusted CAs
	Endpoints   []string `json:"endpoints,omitempty"`
	Prefix      string   `json:"prefix,omitempty"`     // first part of every key in etcd, with its slash: /pulley
	Identities  []string `json:"identities,omitempty"` // of a node: what decrypts the secrets of its environment and role
}

// Progress reports a step of a first boot.
type Progress struct {
	Environment string      `json:"environment,omitempty"`
	Node        string      `json:"node,omitempty"` // "" until it is known
	Role        string      `json:"role,omitempty"`
	Machine     string      `json:"machine"`              // machine ID
	FirstBoot   string      `json:"first_boot,omitempty"` // as in Machine
	Hostname    string      `json:"hostname,omitempty"`
	Step        string      `json:"step"`
	State       string      `json:"state"` // started, done or failed
	Error       model.Prose `json:"error,omitempty"`
	Finished    bool        `json:"finished,omitempty"` // the complete first boot is done
}

// ProgressRequest is a Progress on the wire; the token is "" for a machine with a certificate.
type ProgressRequest struct {
	Token string `json:"token,omitempty"`
	Progress
}

// Renewal is a request for a new certificate of the same name. An operator's has no machine.
type Renewal struct {
	CSR     string  `json:"csr"`
	Machine Machine `json:"machine,omitzero"`
}

// IdentitiesAnswer are the identities that decrypt the secrets of a node's environment and role.
type IdentitiesAnswer struct {
	Identities []string `json:"identities"`
}

// SealingRequest requests the recipient of an environment's secrets, or of a role's. The server makes a missing one.
type SealingRequest struct {
	Environment string   `json:"environment"`
	Role        string   `json:"role,omitempty"`
	Rotate      bool     `json:"rotate,omitempty"`  // make a new recipient
	Lost        bool     `json:"lost,omitempty"`    // with Rotate: forget the former ones, whose identities are lost
	Secrets     []Sealed `json:"secrets,omitempty"` // to encrypt again, to the newest recipient
}

// Sealed is a secret in live data.
type Sealed struct {
	Layer string `json:"layer"`
	Key   string `json:"key"`
	Text  string `json:"text"` // encrypted
}

// SealingAnswer is the newest recipient with its certificate, and the secrets of the request for it.
type SealingAnswer struct {
	Recipient   string   `json:"recipient"`
	Certificate string   `json:"certificate"` // PEM
	Secrets     []Sealed `json:"secrets,omitempty"`
}

// RevealRequest requests the plaintexts of secrets of an environment, or of a role in it.
type RevealRequest struct {
	Environment string   `json:"environment"`
	Role        string   `json:"role,omitempty"`
	Secrets     []Sealed `json:"secrets"`
}

// RevealAnswer has a plaintext for each secret of the request, in its order.
type RevealAnswer struct {
	Plaintexts [][]byte `json:"plaintexts"`
}

// UnreachableError reports that no server gave a valid answer. A later attempt may succeed.
type UnreachableError struct {
	connect.Failures               // of each server
	After            time.Duration // pause that a server requested; 0 is none
	TooOften         bool          // a server limits the requests of this client
}

// Unwrap returns what callers branch on.
func (e *UnreachableError) Unwrap() []error {
	var all []error
	for _, f := range e.Failures {
		all = append(all, f)
	}
	return all
}

// exporterLabel names the keying material (RFC 5705, RFC 8446 7.5) that binds a request to its connection.
// exporterBytes is its length.
const (
	exporterLabel = "EXPORTER-pulley-join"
	exporterBytes = 32
)

// Statement returns the bytes that the key of a CSR signs: the connection and the request on it.
func Statement(connection *tls.ConnectionState, request []byte) ([]byte, error) {
	material, err := connection.ExportKeyingMaterial(exporterLabel, nil, exporterBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot bind the request to its connection: %w", err)
	}
	sum := sha256.Sum256(request)
	return append(append([]byte("pulley join\n"), material...), sum[:]...), nil
}

// prove signs a statement with a key.
func prove(key crypto.Signer, statement []byte) ([]byte, error) {
	if _, pure := key.Public().(ed25519.PublicKey); pure {
		return key.Sign(nil, statement, crypto.Hash(0))
	}
	sum := sha256.Sum256(statement)
	return key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// CheckProof reports whether proof is a signature over statement by the key pub.
func CheckProof(pub crypto.PublicKey, statement, proof []byte) error {
	sum := sha256.Sum256(statement)
	good := false
	switch k := pub.(type) {
	case ed25519.PublicKey:
		good = ed25519.Verify(k, statement, proof)
	case *ecdsa.PublicKey:
		good = ecdsa.VerifyASN1(k, sum[:], proof)
	case *rsa.PublicKey:
		good = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], proof) == nil
	default:
		return fmt.Errorf("cannot check a proof by a key of type %T", pub)
	}
	if !good {
		return errors.New("the proof is not by this key over this connection")
	}
	return nil
}

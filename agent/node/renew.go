package node

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/pki"
)

const (
	// renewTimeout limits one request to one server. A tick must not wait for a renewal, because the next tick can
	// repeat it.
	renewTimeout = 15 * time.Second
	// After a failed renewal, the next attempt waits for 1/retryParts of the remaining lifetime, at most for
	// retryInterval.
	retryParts    = 20
	retryInterval = time.Hour
	triedFile     = "identity/renewal-failed" // time of the last failure, in the state folder
)

// renew gets a new certificate when the node's own is near its end, or when the servers' CA changed. It runs after a
// tick, under the node's lock. Its failure does not fail the tick.
func (n *Node) renew(ctx context.Context) {
	if !n.Joined() || len(n.Servers) == 0 || ctx.Err() != nil {
		return
	}
	now := n.Now()
	id, err := pki.LoadIdentity(n.IdentityFile())
	if err != nil {
		n.Warn(err)
		return
	}
	bundle, err := bounded.ReadFile(n.BundleFile(), nodeconfig.MaxFileBytes)
	if err != nil {
		n.Warn(fmt.Errorf("cannot read the CAs that this node trusts: %w", err))
		return
	}
	left := id.Leaf().NotAfter.Sub(now)
	if !pki.RenewDue(id.Leaf(), ofBundle(bundle, n.store.ServerIssuer()), n.Identity.Node, now) || n.triedLately(now, left) {
		return
	}
	if left <= 0 {
		n.Warn(fmt.Errorf("cannot renew this node's certificate: it ended at %s by this machine's clock\nlet the node join again with a token of its own: `pulley token create -e %s --node %s`",
			id.Leaf().NotAfter.Format(time.RFC3339), n.Identity.Environment, n.Identity.Node))
		n.tried(now)
		return
	}
	fresh, err := n.askForNew(ctx, id, bundle)
	if err != nil {
		n.tried(now)
		n.Warn(fmt.Errorf("cannot renew this node's certificate, which ends in %s (%s): %w", cli.Span(left), id.Leaf().NotAfter.Format(time.RFC3339), err))
		return
	}
	_ = os.Remove(filepath.Join(n.StateDir(), triedFile)) // a leftover file causes only a short delay
	n.Log.Info("this node's certificate was renewed", "node", n.Identity.Node, "until", fresh.Leaf().NotAfter)
}

// askForNew creates a new key, gets a certificate for it, and writes both. It writes the CAs first, because the
// servers' certificate may come from a new one.
func (n *Node) askForNew(ctx context.Context, id pki.Identity, bundle []byte) (pki.Identity, error) {
	t, err := id.TLS(bundle)
	if err != nil {
		return pki.Identity{}, err
	}
	client, err := join.NewClient(n.Servers, t, renewTimeout)
	if err != nil {
		return pki.Identity{}, err
	}
	key, err := pki.NewKey()
	if err != nil {
		return pki.Identity{}, err
	}
	answer, err := client.Renew(ctx, key, join.Machine{ID: nodeconfig.MachineID(n.Root), Boot: nodeconfig.BootID()})
	if err != nil {
		return pki.Identity{}, err
	}
	fresh, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		return pki.Identity{}, err
	}
	if err := acceptable(fresh.Leaf(), id.Leaf(), []byte(answer.CA)); err != nil {
		return pki.Identity{}, err
	}
	if err := atomicfile.Replace(n.BundleFile(), []byte(answer.CA), 0o644); err != nil {
		return pki.Identity{}, fmt.Errorf("cannot write the CAs that this node trusts: %w", err)
	}
	if len(answer.Identities) > 0 {
		if err := n.SaveSecrets(answer.Identities); err != nil {
			return fresh, err
		}
	}
	return fresh, fresh.Save(n.IdentityFile())
}

// acceptable refuses a certificate that would lock this node out: with another name, or of a CA that is not in the
// bundle.
func acceptable(fresh, old *x509.Certificate, bundle []byte) error {
	if fresh.Subject.CommonName != old.Subject.CommonName {
		return fmt.Errorf("the new certificate is for %q, and this node is %q", fresh.Subject.CommonName, old.Subject.CommonName)
	}
	cas, err := pki.ParseCertificates(bundle)
	if err != nil {
		return fmt.Errorf("cannot use the CAs of the new certificate: %w", err)
	}
	for _, ca := range cas {
		if fresh.CheckSignatureFrom(ca) == nil {
			return nil
		}
	}
	return errors.New("none of the CAs in the answer issued the new certificate")
}

// ofBundle returns issuer, an authority key id, if it belongs to a CA in the bundle. The certificate of another cluster
// has another CA, and does not indicate a rotation.
func ofBundle(bundle, issuer []byte) []byte {
	cas, err := pki.ParseCertificates(bundle)
	if err != nil {
		return nil
	}
	for _, ca := range cas {
		if bytes.Equal(ca.SubjectKeyId, issuer) {
			return issuer
		}
	}
	return nil
}

// triedLately reports whether a retry is too early: a fleet must not contact unreachable servers in every tick.
func (n *Node) triedLately(now time.Time, left time.Duration) bool {
	b, err := bounded.ReadFile(filepath.Join(n.StateDir(), triedFile), nodeconfig.MaxFileBytes)
	if err != nil {
		return false
	}
	tried, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil || tried.After(now) { // damaged, or the clock was set back
		return false
	}
	pause := retryInterval
	if left > 0 {
		pause = min(pause, left/retryParts)
	}
	return now.Sub(tried) < pause
}

func (n *Node) tried(now time.Time) {
	text := []byte(now.UTC().Format(time.RFC3339Nano))
	_ = atomicfile.Replace(filepath.Join(n.StateDir(), triedFile), text, 0o600) // on failure, the next tick retries
}

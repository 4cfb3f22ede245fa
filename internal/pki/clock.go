package pki

import (
	"crypto/x509"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// ClockError reports that a clock contradicts a certificate: the machine's clock, the server's clock or the
// certificate is wrong.
type ClockError struct {
	Now, From, Until time.Time // by this machine's clock; the validity of the certificate, where it is known
	Own              bool      // the certificate is this machine's own, and the server rejects it
}

// outOfTime is the detail of x509's error Expired. gRPC keeps only the text of the error.
var outOfTime = regexp.MustCompile(`x509: certificate has expired or is not yet valid: current time (\S+) is (after|before) ([^\s"]+)`)

// expiredAlert is the alert of TLS about a certificate that the server finds expired or not yet valid.
const expiredAlert = "remote error: tls: expired certificate"

// ExplainClock returns the *ClockError in a failed connection, or nil if no clock is the cause. own is the certificate
// that this machine showed; nil for none.
func ExplainClock(err error, own *x509.Certificate, now time.Time) error {
	if err == nil {
		return nil
	}
	if m := outOfTime.FindStringSubmatch(err.Error()); m != nil {
		e := &ClockError{}
		e.Now, _ = time.Parse(time.RFC3339, m[1]) // a time that is not readable is left out
		limit, _ := time.Parse(time.RFC3339, m[3])
		if m[2] == "after" {
			e.Until = limit
		} else {
			e.From = limit
		}
		return e
	}
	if !strings.Contains(err.Error(), expiredAlert) {
		return nil
	}
	e := &ClockError{Now: now, Own: true}
	if own != nil {
		e.From, e.Until = own.NotBefore, own.NotAfter
	}
	return e
}

func (e *ClockError) Error() string {
	whose := "the server's certificate"
	if e.Own {
		whose = "this machine's certificate"
	}
	clock := "this machine's clock shows " + e.Now.UTC().Format(time.RFC3339)
	switch {
	case !e.Until.IsZero() && e.Now.After(e.Until):
		return fmt.Sprintf("%s, and %s ended at %s", clock, whose, e.Until.UTC().Format(time.RFC3339))
	case !e.From.IsZero() && e.Now.Before(e.From):
		return fmt.Sprintf("%s, and %s begins at %s", clock, whose, e.From.UTC().Format(time.RFC3339))
	}
	return clock + ", and the server reports that this machine's certificate has ended or has not begun: one of the two clocks is wrong"
}

// Hint returns the remedy.
func (e *ClockError) Hint() string {
	if e.Own {
		return "compare the clocks of both machines (`date -u`); if they are correct, join or log in again with a new token"
	}
	return "check this machine's clock (`date -u`); if it is correct, renew the server's certificate: start `pulley serve` there, or run `pulley auth certificate`"
}

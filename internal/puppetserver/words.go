package puppetserver

import (
	"fmt"
	"strings"
	"time"
)

// Sentence renders the finding in one line, without the server.
func (f Finding) Sentence() string {
	at, until := f.At.UTC().Format(time.RFC3339), f.Until.UTC().Format(time.RFC3339)
	switch f.Code {
	case ServerAnswers:
		if f.Version == "" {
			return "it answers, and does not show its version"
		}
		return "it answers: puppetserver " + f.Version
	case ServerStopped:
		return "these services do not run: " + strings.Join(f.Services, ", ")
	case VersionsDiffer:
		return fmt.Sprintf("it has puppetserver %s, and another server has %s", f.Version, f.Other)
	case ClockFine:
		return "its clock agrees with this machine's"
	case ClockOff:
		return fmt.Sprintf("its clock differs from this machine's by %s", time.Duration(f.Seconds)*time.Second)
	case OwnFine:
		return fmt.Sprintf("the certificate %q is valid until %s", f.Name, at)
	case OwnEnds:
		return fmt.Sprintf("the certificate %q ends at %s", f.Name, at)
	case RightsFine:
		return fmt.Sprintf("%q may list, sign, revoke and clean certificates", f.Name)
	case CAFine:
		return "the CA is that of ca.pem, valid until " + at
	case CAEnds:
		return "the CA ends at " + at
	case CAChanged:
		return "the CA has another certificate than ca.pem"
	case CAMissing:
		return "the environment file names no CA: certificates are not checked"
	case CRLFine:
		return fmt.Sprintf("the revocation list was made at %s and is valid until %s", at, until)
	case CRLEnded:
		return "the revocation list ended at " + until + ": agents refuse every server"
	case CRLArrived:
		if !f.Until.IsZero() {
			return fmt.Sprintf("its revocation list has the revocation of %s; later ones, the last of %s, were not tested", at, until)
		}
		return fmt.Sprintf("its revocation list has the CA's last revocation, of %s", at)
	case CRLOld:
		return fmt.Sprintf("it accepts a certificate that the CA revoked at %s: its revocation list is older than the CA's", at)
	case CRLUnknown:
		return "the age of its revocation list is unknown: no revoked certificate was made to test it"
	case EnvironmentFine:
		return fmt.Sprintf("environment %s compiles: %d resources, version %s", f.Environment, f.Resources, f.Version)
	}
	return f.Text
}

// Remedy renders what to do in one line; "" for nothing.
func (f Finding) Remedy() string {
	switch f.Code {
	case ServerStopped:
		return "wait until the server has started, or read the log of puppetserver on that host"
	case VersionsDiffer:
		return "install the same version on all servers"
	case ClockOff:
		return "compare the clocks of both machines (`date -u`), and correct the wrong one"
	case OwnEnds:
		return "make a new certificate: docs/puppet-server.md describes how"
	case CAChanged:
		return "if the CA was replaced, put its certificates into ca.pem; else the connection is intercepted"
	case CAEnds:
		return "renew the CA: https://www.puppet.com/docs/puppet/7/ssl_regenerate_certificates"
	case CAMissing:
		return "write `puppet: {ca: {url: https://HOST:8140}}` into the environment file"
	case CRLEnded:
		return "make a new list: revoke any certificate"
	case CRLOld:
		return "copy the list of the CA to that server: docs/puppet-server.md describes how"
	case CRLUnknown:
		return "run the command with --test-crl"
	}
	return f.Advice
}

package connect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Error returns the failure in one line.
func (f *Failure) Error() string {
	return fmt.Sprintf("cannot connect to %s at %s: %s", f.Server, f.URL, f.Cause())
}

// Cause returns the cause in one line, without the address.
func (f *Failure) Cause() string {
	within := "in time"
	if f.Within > 0 {
		within = "within " + f.Within.String()
	}
	switch f.Code {
	case AddressInvalid:
		return "it is not the URL of a server: " + f.Text
	case HostUnknown:
		return "the host " + f.Host + " is unknown"
	case NameServerSilent:
		return "the address of " + f.Host + " cannot be found: the name server does not answer"
	case HostUnreachable:
		return "this machine's network has no way to the host"
	case PortClosed:
		return "the port is closed (connection refused)"
	case ConnectTimeout:
		return "the host accepts no connection " + within
	case TLSTimeout:
		return "the server accepts connections, and does not answer TLS " + within
	case AnswerTimeout:
		return "the server accepts connections, and does not answer " + within
	case ConnectionClosed:
		return "the server closed the connection"
	case NoLeader:
		return "the members of etcd have no leader"
	case ServerPlain:
		return "the server has no TLS"
	case ServerTLS:
		return "the server requires TLS"
	case JoinsPort:
		return "this is the port of `pulley serve` for joins"
	case EtcdsPort:
		return "this is the port of etcd"
	case OtherServer:
		return "another server answers there"
	case Busy:
		return "the server is busy: " + f.Text
	case OtherName:
		return "the server's certificate is for " + cmp.Or(strings.Join(f.Names, ", "), "other names") + ", not for " + f.Host
	case CAMissing:
		return "no CA is given, and this machine does not trust the CA of the server" + f.issuer()
	case CADiffers:
		return "the CA of the server" + f.issuer() + " is not in " + cmp.Or(f.CA, "the CAs of this machine")
	case PinDiffers:
		return "the server has no certificate of the CA that was pinned"
	case OwnMissing:
		return "the server requires a client certificate, and none is given"
	case OwnRejected:
		return fmt.Sprintf("the server rejects the client certificate %q: it is of another CA", f.Client)
	case OwnRefused:
		return fmt.Sprintf("the server refuses the client certificate %q: it is revoked, or of another CA", f.Client)
	case OwnTime, ServerTime:
		return f.clock()
	}
	return f.Text
}

func (f *Failure) issuer() string {
	if f.Issuer == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", f.Issuer)
}

func (f *Failure) clock() string {
	whose := "the server's certificate"
	if f.Code == OwnTime {
		whose = "this machine's certificate"
	}
	clock := "this machine's clock shows " + f.Now.UTC().Format(time.RFC3339)
	switch {
	case !f.Until.IsZero() && f.Now.After(f.Until):
		return fmt.Sprintf("%s, and %s ended at %s", clock, whose, f.Until.UTC().Format(time.RFC3339))
	case !f.From.IsZero() && f.Now.Before(f.From):
		return fmt.Sprintf("%s, and %s begins at %s", clock, whose, f.From.UTC().Format(time.RFC3339))
	}
	return clock + ", and the server reports that this machine's certificate has ended or has not begun: one of the two clocks is wrong"
}

// Hint returns the remedy in one line.
func (f *Failure) Hint() string {
	if hint := f.puppetHint(); (f.Server == Puppet || f.Server == PuppetDB) && hint != "" {
		return hint
	}
	etcd := f.Server == Etcd
	switch f.Code {
	case AddressInvalid:
		return "give the form https://HOST:PORT"
	case HostUnknown, NameServerSilent:
		return "correct the host in the address, or the name resolution of this machine: `getent hosts " + f.Host + "`"
	case HostUnreachable, ConnectTimeout:
		return "check the address, the host's state, and the firewalls on the way"
	case PortClosed:
		if etcd {
			return "start etcd there (`pulley serve` contains one), or correct the address"
		}
		return "start `pulley serve` there, or correct the address: joins have the HTTPS port, 8443 by default"
	case TLSTimeout, AnswerTimeout, ConnectionClosed:
		if etcd {
			return "read the log of etcd on that host: it may be overloaded, starting, or without a majority; `--timeout` waits longer"
		}
		return "read the log of `pulley serve` on that host"
	case NoLeader:
		return "start the members that are down: etcd answers while more than half of them run"
	case ServerPlain:
		if etcd {
			return "write http:// in the address; `pulley serve --auth` gives its etcd TLS"
		}
		return "give the HTTPS port of `pulley serve`, 8443 by default"
	case ServerTLS:
		return "write https:// in the address, and give the CA, certificate and key (--cacert, --cert, --key): an operator gets them with `pulley login`, a node when it joins with a token"
	case JoinsPort:
		return "give the address of etcd, port 2379 by default: `pulley serve` prints it when it starts"
	case EtcdsPort:
		return "give the HTTPS port of `pulley serve`, 8443 by default"
	case OtherServer:
		if etcd {
			return "correct the address: etcd has port 2379 by default"
		}
		return "give the HTTPS port of `pulley serve`, 8443 by default"
	case OtherName:
		return "use a name of the certificate in the address; or add this one to the certificate: `pulley serve --advertise " + f.Host + "`, `pulley auth certificate`"
	case CAMissing:
		return "give the file of the fleet's CA with --cacert or PULLEY_CACERT: `pulley login` stores it"
	case CADiffers, PinDiffers:
		return "the server belongs to another fleet, its CA was replaced, or the connection is intercepted: compare with `pulley ca show` on the server"
	case OwnMissing:
		return "give a certificate and its key with --cert and --key, or PULLEY_CERT and PULLEY_KEY: `pulley login` stores them"
	case OwnRejected, OwnRefused:
		return "use the certificate of this fleet: an operator gets one with `pulley login`, a node with a new token"
	case OwnTime:
		return "compare the clocks of both machines (`date -u`); if they are correct, join or log in again with a new token"
	case ServerTime:
		return "check this machine's clock (`date -u`); if it is correct, renew the server's certificate: start `pulley serve` there, or run `pulley auth certificate`"
	}
	return ""
}

// puppetHint returns the remedy where that of a Puppet server or of PuppetDB differs.
func (f *Failure) puppetHint() string {
	program, servers, port := "puppetserver", "Puppet servers have", "8140"
	if f.Server == PuppetDB {
		program, servers, port = "puppetdb", "PuppetDB has", "8081"
	}
	switch f.Code {
	case PortClosed:
		return "start " + program + " there, or correct the address: " + servers + " port " + port + " by default"
	case TLSTimeout, AnswerTimeout, ConnectionClosed:
		return "read the log of " + program + " on that host: it may be overloaded or starting, which takes up to a minute"
	case ServerPlain, ServerTLS, JoinsPort, EtcdsPort, OtherServer:
		return "give the HTTPS port of " + string(f.Server) + ", " + port + " by default"
	case OtherName:
		return "use a name of the certificate in the address; or add this one to the server's dns_alt_names, and renew its certificate"
	case CAMissing, CADiffers, PinDiffers:
		return "the server belongs to another Puppet CA, its CA was replaced, or the connection is intercepted: compare ca.pem with /puppet-ca/v1/certificate/ca of the CA"
	case OwnMissing, OwnRejected, OwnRefused:
		return "give a certificate of this Puppet CA that is not revoked, with its key: docs/puppet-server.md describes how to make one"
	case OwnTime:
		return "compare the clocks of both machines (`date -u`); if they are correct, make a new certificate for Pulley: docs/puppet-server.md describes how"
	case ServerTime:
		return "check this machine's clock (`date -u`); if it is correct, renew the certificate of " + string(f.Server)
	}
	return ""
}

// Failures are the failures of all servers that were tried, at least one.
type Failures []*Failure

// Error returns the failures in one line.
func (all Failures) Error() string {
	first := all[0]
	var urls, each []string
	same := true
	for _, f := range all {
		urls = append(urls, f.URL)
		each = append(each, f.URL+": "+f.Cause())
		same = same && f.Cause() == first.Cause()
	}
	if same && first.Code == Busy { // it answered
		return fmt.Sprintf("%s answers: %s", first.Server, first.Text)
	}
	if same {
		return fmt.Sprintf("cannot connect to %s at %s: %s", first.Server, strings.Join(urls, ", "), first.Cause())
	}
	return fmt.Sprintf("cannot connect to %s: %s", first.Server, strings.Join(each, "; "))
}

// Hint returns the remedies, one a line.
func (all Failures) Hint() string {
	var hints []string
	for _, f := range all {
		if hint := f.Hint(); hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return strings.Join(hints, "\n")
}

// Clock reports whether a clock is the cause of one of the failures.
func (all Failures) Clock() bool {
	return slices.ContainsFunc(all, (*Failure).Clock)
}

package puppetserver

import (
	"fmt"
	"strings"

	"pulley/internal/pki/connect"
)

// Code names why a Puppet server did not do what was requested.
type Code string

// The codes. Name is a certname.
const (
	Unreachable        Code = "unreachable"         // wraps a *connect.Failure
	NoRight            Code = "no_right"            // Name: the client's own; Method, Path
	NoService          Code = "no_service"          // no CA, or no PuppetDB, at this address
	UnknownName        Code = "unknown_name"        // Name
	NoRequest          Code = "no_request"          // Name: the CA has no request to sign
	NotSigned          Code = "not_signed"          // Name: only a signed certificate can be revoked
	Taken              Code = "taken"               // Name, State: of another key
	InvalidName        Code = "invalid_name"        // Name
	BadRequest         Code = "bad_request"         // Name, Text: a certificate request that Pulley does not sign
	Infrastructure     Code = "infrastructure"      // Name: of a Puppet server, or Pulley's own
	OtherCertificate   Code = "other_certificate"   // Name, Text: the CA's answer is not the certificate that was requested
	EnvironmentMissing Code = "environment_missing" // Name: of the environment; Text: of the one that was compiled
	CompileFailed      Code = "compile_failed"      // Text
	ClassifierFailed   Code = "classifier_failed"   // Name: the client's own; Text: of the server
	StillActive        Code = "still_active"        // Name; Text: the time of the command that PuppetDB ignored
	Refused            Code = "refused"             // Status, Text
	ServerFailed       Code = "server_failed"       // Status, Text
	Unreadable         Code = "unreadable"          // Text
)

// Error is why a request was not done. Each code has few of the parameters.
type Error struct {
	Code   Code
	Doing  string // "sign the certificate of web1"
	Server connect.Server
	URL    string // of the server

	Name         string
	State        State
	Method, Path string // of the endpoint, for auth.conf
	Status       int    // of HTTP
	Text         string // of the server or a library
	err          error
}

func (e *Error) Unwrap() error { return e.err }

// OfServer reports whether other requests to the server would fail as well. Any other failure may be of one name, for example of a
// damaged file of the CA.
func (e *Error) OfServer() bool {
	return e.Code == Unreachable || e.Code == NoRight || e.Code == NoService
}

// Error returns the error in one line.
func (e *Error) Error() string {
	if e.Code == Unreachable {
		return fmt.Sprintf("cannot %s: %v", e.Doing, e.err)
	}
	return fmt.Sprintf("cannot %s: %s", e.Doing, e.Cause())
}

// Cause returns the cause in one line.
func (e *Error) Cause() string {
	switch e.Code {
	case Unreachable:
		return e.err.Error()
	case NoRight:
		cause := fmt.Sprintf("%s %s does not allow %s on %s to the certificate %q", e.Server, e.URL, e.Method, e.endpoint(), e.Name)
		if e.Server == connect.PuppetDB { // its text names the setting
			cause += ": " + e.Text
		}
		return cause
	case NoService:
		if e.Server == connect.PuppetDB {
			return "no PuppetDB answers at " + e.URL
		}
		return "the Puppet server " + e.URL + " has no CA"
	case UnknownName:
		return fmt.Sprintf("the CA %s has no certificate and no request of %q", e.URL, e.Name)
	case NoRequest:
		return fmt.Sprintf("the CA %s has no pending request of %q", e.URL, e.Name)
	case NotSigned:
		return fmt.Sprintf("the CA %s has a request of %q, and no certificate", e.URL, e.Name)
	case Taken:
		if e.State == Requested {
			return fmt.Sprintf("the CA %s has a request of %q with another key", e.URL, e.Name)
		}
		return fmt.Sprintf("the CA %s has a certificate of %q with another key (%s)", e.URL, e.Name, e.State)
	case InvalidName:
		return fmt.Sprintf("%q is not a certname that Puppet's CA signs: it needs lower-case letters, digits and .-_", e.Name)
	case BadRequest:
		return fmt.Sprintf("the certificate request is not one of %q: %s", e.Name, e.Text)
	case Infrastructure:
		return fmt.Sprintf("%q is a certificate of Puppet's infrastructure, or Pulley's own", e.Name)
	case OtherCertificate:
		return fmt.Sprintf("the answer of %s is not the certificate that was requested: %s", e.URL, e.Text)
	case EnvironmentMissing:
		if e.Text != "" {
			return fmt.Sprintf("the server compiled environment %q: it has no environment %q, or its classifier names another one", e.Text, e.Name)
		}
		return fmt.Sprintf("%q is not the name of an environment: Puppet accepts lower-case letters, digits and _", e.Name)
	case CompileFailed, ClassifierFailed:
		return e.Text
	case StillActive:
		return fmt.Sprintf("PuppetDB %s has data of %q that is newer than %s, this machine's time", e.URL, e.Name, e.Text)
	case ServerFailed:
		return fmt.Sprintf("%s %s failed (%d): %s", e.Server, e.URL, e.Status, e.Text)
	case Unreadable:
		return fmt.Sprintf("the answer of %s has an unknown form: %s", e.URL, e.Text)
	}
	return fmt.Sprintf("%s %s refused it (%d): %s", e.Server, e.URL, e.Status, e.Text)
}

// endpoint is the path as auth.conf has it: without the certname.
func (e *Error) endpoint() string {
	path, _, _ := strings.Cut(e.Path, "?")
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 4)
	return "/" + strings.Join(parts[:min(len(parts), 3)], "/")
}

// Hint returns the remedy in one line; "" for none.
func (e *Error) Hint() string {
	switch e.Code {
	case Unreachable:
		if hinting, ok := e.err.(interface{ Hint() string }); ok {
			return hinting.Hint()
		}
	case NoRight:
		if e.Server == connect.PuppetDB {
			return fmt.Sprintf("add %q to the file that certificate-allowlist of that PuppetDB names, and restart it", e.Name)
		}
		return fmt.Sprintf("allow %q in auth.conf of that server, and restart it: docs/puppet-server.md has the rules", e.Name)
	case NoService:
		if e.Server == connect.PuppetDB {
			return "give the URL of PuppetDB, port " + DefaultPuppetDBPort + " by default"
		}
		return "give the URL of the Puppet server with the CA"
	case UnknownName, NoRequest:
		return "list the names with `pulley puppetserver list --all`"
	case NotSigned:
		return "delete the request with `pulley puppetserver clean`"
	case Taken:
		return "delete it with `pulley puppetserver clean`, after you made sure that no machine uses it"
	case InvalidName:
		return "give the machine a name in lower case"
	case BadRequest:
		return "delete it with `pulley puppetserver clean`, and repeat the request without these parts"
	case Infrastructure:
		return "use `puppetserver ca` on the machine of the CA, if this is really meant"
	case OtherCertificate:
		return "clean the name with `pulley puppetserver clean`, and repeat the request"
	case EnvironmentMissing:
		return "deploy the environment on that server, correct its name, or correct the classifier"
	case ClassifierFailed:
		return fmt.Sprintf("correct external_nodes of that server for %q: pulley enc needs --unknown empty for names that are not in Pulley", e.Name)
	case StillActive:
		return "compare the clocks of both machines (`date -u`), and stop Puppet on a removed machine that still runs"
	case ServerFailed:
		if e.Server == connect.PuppetDB {
			return "read the log of puppetdb on that host"
		}
		return "read the log of puppetserver on that host"
	}
	return ""
}

package connect_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/internal/pki/connect"
)

// gRPC and net/http keep only the text of an error: a cause whose text is not recognised has no remedy.
func TestExplainRecognisesTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]connect.Code{
		`rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: connect.PortClosed,
		`connection error: desc = "transport: Error while dialing: dial tcp: lookup etcd.invalid on 10.0.0.2:53: no such host"`:                             connect.HostUnknown,
		`dial tcp: lookup etcd.example on 10.0.0.2:53: read udp 10.0.0.9:4711->10.0.0.2:53: i/o timeout`:                                                    connect.NameServerSilent,
		`dial tcp 10.0.0.9:2379: i/o timeout`:                                   connect.ConnectTimeout,
		`dial tcp 10.0.0.9:2379: connect: no route to host`:                     connect.HostUnreachable,
		`dial tcp 10.0.0.9:2379: connect: network is unreachable`:               connect.HostUnreachable,
		`context deadline exceeded`:                                             connect.AnswerTimeout,
		`etcdserver: no leader`:                                                 connect.NoLeader,
		`etcdserver: request timed out`:                                         connect.NoLeader,
		`error reading server preface: remote error: tls: certificate required`: connect.OwnMissing,
		`connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`: connect.ServerPlain,
		`tls: failed to verify certificate: x509: certificate signed by unknown authority`:                                            connect.CAMissing,
		`tls: failed to verify certificate: x509: certificate is valid for localhost, not etcd`:                                       connect.OtherName,
		`tls: failed to verify certificate: x509: cannot validate certificate for 10.0.0.9 because it doesn't contain any IP SANs`:    connect.OtherName,
		`x509: certificate has expired or is not yet valid: current time 2026-11-22T12:00:00Z is after 2026-01-01T00:00:00Z`:          connect.ServerTime,
		`remote error: tls: expired certificate`:                             connect.OwnTime,
		`read tcp 10.0.0.1:1->10.0.0.9:2379: read: connection reset by peer`: connect.ConnectionClosed,
		`something new`: connect.Other,
	} {
		f := connect.Target{Server: connect.Etcd, URL: "https://etcd:2379"}.Explain(errors.New(text), time.Now())
		if f.Code != want {
			t.Errorf("%s: %s, want %s", text, f.Code, want)
		}
	}
}

// A code without words reaches a person as an empty line.
func TestEachCodeHasCauseAndRemedy(t *testing.T) {
	t.Parallel()
	for _, code := range codes(t) {
		for _, server := range []connect.Server{connect.Etcd, connect.Serve, connect.Puppet, connect.PuppetDB} {
			f := &connect.Failure{Code: code, Server: server, URL: "https://etcd:2379", Text: "TEXT", Host: "etcd", Within: time.Second}
			if cause := f.Cause(); cause == "" || cause == "TEXT" && code != connect.Other || strings.Contains(cause, "\n") {
				t.Errorf("%s: cause %q", code, cause)
			}
			if f.Hint() == "" && code != connect.Other && code != connect.Busy || strings.Contains(f.Hint(), "\n") {
				t.Errorf("%s: remedy %q", code, f.Hint())
			}
		}
	}
}

// codes are the codes that the package declares.
func codes(t *testing.T) (all []connect.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, connect.Code(text))
			}
		}
		return true
	})
	if len(all) < 20 {
		t.Fatalf("only %d codes were found", len(all))
	}
	return all
}

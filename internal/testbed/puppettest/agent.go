package puppettest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errSilent means that the server did not answer.
var errSilent = errors.New("the server does not answer")

// agent is `puppet agent --onetime --no-daemonize` of the fake.
func (r *run) agent() int {
	r.term = make(chan os.Signal, 1)
	signal.Notify(r.term, syscall.SIGTERM)
	for _, needed := range []string{"onetime", "no-daemonize", "strict_environment_mode", "no-usecacheonfailure", "detailed-exitcodes"} {
		if r.cli[needed] == "" {
			fmt.Fprintf(os.Stderr, "Error: the fake runs puppet agent with --%s only\n", needed)
			return 1
		}
	}
	environment := r.get("environment")
	r.say("info", "Puppet", "Using environment '"+environment+"'")
	manifest, err := r.catalog(environment)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r.abort("Failed to apply catalog: Environment '" + environment + "' not found on server, aborting run.")
	case errors.Is(err, errSilent):
		r.say("err", "Puppet", "Could not retrieve catalog from remote server: No more routes to puppet")
		r.say("warning", "Puppet", "Not using cache on failed catalog")
		return r.abort("Could not retrieve catalog; skipping run")
	case err != nil:
		r.say("err", "Puppet", "Could not retrieve catalog from remote server: "+err.Error())
		return r.abort("Could not retrieve catalog; skipping run")
	}
	r.version = strconv.FormatInt(time.Now().Unix(), 10)
	directives := r.directives(manifest)
	for _, d := range directives {
		switch d.verb {
		case "config-version":
			r.version = d.args
		case "other-environment":
			r.say("err", "Puppet", fmt.Sprintf("Not using catalog because its environment '%s' does not match agent specified environment '%s' and strict_environment_mode is set", d.args, environment))
			return r.abort("Could not retrieve catalog; skipping run")
		}
		if problem := r.compile(d); problem != "" {
			r.say("err", "Puppet", "Could not retrieve catalog from remote server: Error 500 on SERVER: Server Error: Evaluation Error: Error while evaluating a Function Call, "+problem)
			r.say("warning", "Puppet", "Not using cache on failed catalog")
			return r.abort("Could not retrieve catalog; skipping run")
		}
	}
	r.classes(directives)
	r.say("info", "Puppet", "Applying configuration version '"+r.version+"'")
	r.list(directives)
	for _, d := range directives {
		if d.verb == "source" {
			r.source(d)
			continue
		}
		if stop := r.enact(d); stop {
			return r.abort("Could not run: SIGTERM")
		}
	}
	r.say("notice", "Puppet", "Applied catalog in 0.01 seconds")
	return r.finish()
}

// source manages a file whose content comes from the server.
func (r *run) source(d directive) {
	path, _, _ := strings.Cut(d.args, " ")
	res := resource{ref: "File[" + path + "]", line: d.line}
	if _, err := r.catalog(r.get("environment")); err != nil {
		res.failed, res.message = true, "Could not evaluate: Could not retrieve file metadata for puppet:///modules/m1/x: "+err.Error()
		r.add(res, "err")
		return
	}
	r.file(path, "x", d)
}

// catalog returns the manifest of an environment from the server.
func (r *run) catalog(environment string) (string, error) {
	ssl, name := r.get("ssldir"), r.get("certname")
	pair, err := tls.LoadX509KeyPair(filepath.Join(ssl, "certs", name+".pem"), filepath.Join(ssl, "private_keys", name+".pem"))
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(ssl, "certs", "ca.pem"))
	if err != nil {
		return "", err
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(ca)
	server := r.get("server")
	host := server
	if routes, _ := os.ReadFile(r.get("route_file")); strings.Contains(string(routes), "pulley_address") {
		if _, err := os.Stat(filepath.Join(r.get("vendormoduledir"), "pulley/lib/puppet/indirector/facts/pulley_address.rb")); err != nil {
			return "", fmt.Errorf("could not find terminus pulley_address for indirection facts: %w", err)
		}
		address, err := os.ReadFile(filepath.Join(r.get("confdir"), "address"))
		if err != nil {
			return "", err
		}
		host = string(address)
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: cas, ServerName: server, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(host, r.get("serverport")))
		},
	}}
	answer, err := client.Get("https://" + server + "/fake/" + environment)
	if err != nil {
		text := err.Error()
		if strings.Contains(text, "refused") || strings.Contains(text, "EOF") || strings.Contains(text, "reset") {
			r.say("err", "Puppet", fmt.Sprintf("Connection to https://%s:%s/puppet/v3 failed, trying next route: Failed to open TCP connection (Connection refused - connect(2))", server, r.get("serverport")))
			return "", fmt.Errorf("%w: Connection refused - connect(2)", errSilent)
		}
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return "", os.ErrNotExist
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s %d on SERVER: %s", "Error", answer.StatusCode, text) // as Puppet prints it
	}
	return string(text), err
}

package openstack_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

var (
	ours = machines.Mark{Owner: "0123456789abcdef", Fleet: "dev"}
	west = environments.Provider{Driver: environments.DriverOpenStack, Cloud: "west"}
)

// cloud starts a cloud and returns it with its clouds.yaml.
func cloud(t *testing.T, c novatest.Config) (*novatest.Cloud, string) {
	t.Helper()
	cloud := novatest.New(c)
	_, file := serve(t, cloud)
	return cloud, file
}

// serve starts a server with a handler.
func serve(t *testing.T, handler http.Handler) (*httptest.Server, string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte(novatest.CloudsYAML(server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, file
}

// behind starts a proxy for a cloud. It answers the requests for which its function returns true.
func behind(t *testing.T, cloud *novatest.Cloud, answers func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	_, file := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(w, r) {
			cloud.ServeHTTP(w, r)
		}
	}))
	return file
}

// open returns a driver for the fleet of the tests.
func open(t *testing.T, file string, change ...func(*openstack.Config)) *openstack.Driver {
	t.Helper()
	config := openstack.Config{Provider: west, Mark: ours, CloudsFile: file}
	for _, c := range change {
		c(&config)
	}
	d, err := openstack.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func order(name string) machines.Order {
	return machines.Order{
		Name: name, Node: name, Role: "compute", Flavor: "m1.small", Image: "debian-12", Networks: []string{"front"},
		Userdata: []byte("#!/bin/sh\n"),
	}
}

func create(t *testing.T, d *openstack.Driver, o machines.Order) machines.Machine {
	t.Helper()
	m, err := d.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func list(t *testing.T, d *openstack.Driver) []machines.Machine {
	t.Helper()
	machines, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return machines
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
	}
}

func short(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

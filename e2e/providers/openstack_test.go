//go:build e2e

package providers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/drivers/conform"
	provision "pulley/internal/machines"
	"pulley/internal/testbed/conformtest"
	"pulley/internal/testbed/novatest"
)

// openstack starts a cloud, and returns it with what its client has to be told.
func openstack(t *testing.T, c novatest.Config) (*novatest.Cloud, []string) {
	t.Helper()
	cloud := novatest.New(c)
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte(novatest.CloudsYAML(server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	return cloud, []string{"OS_CLIENT_CONFIG_FILE=" + file, "OS_CLOUD=west"}
}

// A driver's tests are worth as much as the cloud that they run against: OpenStack's own client has to take it for one.
func TestClientOfOpenStackWorksWithNovatest(t *testing.T) {
	cloud, environ := openstack(t, novatest.Config{Build: 100 * time.Millisecond, Deletion: 100 * time.Millisecond})
	client := func(want any, words ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/usr/bin/openstack", words...)
		cmd.Env = append([]string{path, "HOME=" + t.TempDir()}, environ...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("openstack %q: %v\n%s", words, err, &stderr)
		}
		if want != nil {
			if err := json.Unmarshal(out, want); err != nil {
				t.Fatalf("openstack %q: %v\n%s", words, err, out)
			}
		}
	}
	client(nil, "server", "create", "--flavor", "m1.small", "--image", "debian-12", "--network", "front", "--key-name", "operators",
		"--property", "team=core", "--security-group", "default", "--availability-zone", "nova", "--config-drive", "True", "--wait", "web1")
	var listed []struct{ ID, Name, Status string }
	client(&listed, "server", "list", "-f", "json")
	var shown struct {
		Flavor, Image string
		Properties    map[string]string
	}
	client(&shown, "server", "show", "web1", "-f", "json")
	if len(listed) != 1 || listed[0].Name != "web1" || listed[0].Status != "ACTIVE" || shown.Properties["team"] != "core" || shown.Flavor != "m1.small (1)" {
		t.Errorf("%+v\n%+v", listed, shown)
	}
	client(nil, "server", "stop", "web1")
	client(&listed, "server", "list", "--status", "SHUTOFF", "-f", "json")
	if len(listed) != 1 {
		t.Errorf("%+v", listed)
	}
	client(nil, "server", "delete", "--wait", "web1")
	if left := cloud.Servers(); len(left) != 0 {
		t.Errorf("%+v", left)
	}
}

func serverOrder(name string) provision.Order {
	return provision.Order{Name: name, Flavor: "m1.small", Image: "debian-12", Networks: []string{"front"}}
}

// Who starts from the documented command must not start from one that makes machines twice, or deletes others'.
func TestCommandForOpenStackConforms(t *testing.T) {
	t.Parallel()
	cloud, environ := openstack(t, novatest.Config{Build: 100 * time.Millisecond, Deletion: 100 * time.Millisecond})
	conformtest.Test(t, slow(conform.Config{
		New:   documented(t, environ, "openstack", "--key-name", "operators"),
		Order: serverOrder,
		Userdata: func(_ context.Context, m provision.Machine) ([]byte, error) {
			servers := cloud.Servers()
			i := slices.IndexFunc(servers, func(s novatest.Server) bool { return s.ID == m.ID })
			if i < 0 {
				return nil, fmt.Errorf("there is no server %s", m.ID)
			}
			return servers[i].Userdata, nil
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			stranger := cloud.Add(novatest.Server{Name: name})
			return func(context.Context) error {
				if !slices.ContainsFunc(cloud.Servers(), func(s novatest.Server) bool { return s.ID == stranger.ID }) {
					return fmt.Errorf("server %s is gone", stranger.ID)
				}
				return nil
			}, nil
		},
	}))
}

// mine is a server of the fleet that open opens.
func mine(name string) novatest.Server {
	return novatest.Server{Name: name, Metadata: map[string]string{"pulley-owner": "o", "pulley-fleet": "dev"}}
}

// What is not on the list is made again: a list has all pages and all parts of the cloud, or is an error.
func TestCommandForOpenStackListsAllOrFails(t *testing.T) {
	t.Parallel()
	cloud, environ := openstack(t, novatest.Config{MaxLimit: 2})
	var ids []string
	for n := range 5 {
		ids = append(ids, cloud.Add(mine(fmt.Sprintf("compute%d", n))).ID)
	}
	// Later versions of the client ask Nova for -1 servers.
	later := instead(t, "openstack", `case " $* " in *" --limit=-1 "*) echo "Invalid input for query parameters limit (HTTP 400)" >&2; exit 1; esac; exec "$tool" "$@"`)
	p := open(t, append(environ, later), "openstack")
	if machines, err := p.List(t.Context()); err != nil || len(machines) != 5 {
		t.Errorf("%+v, %v", machines, err)
	}
	stuck := instead(t, "openstack", `for word; do shift; case $word in --marker=*) ;; *) set -- "$@" "$word"; esac; done; exec "$tool" "$@"`)
	if machines, err := open(t, append(environ, stuck), "openstack").List(t.Context()); err == nil {
		t.Errorf("who can't turn the page lists %+v", machines)
	}
	cloud.CellDown(ids[0], ids[3])
	if machines, err := p.List(t.Context()); err == nil {
		t.Errorf("a part is down: %+v", machines)
	}
	if m, err := p.Create(t.Context(), serverOrder("compute3")); err == nil {
		t.Errorf("a part is down: %+v is made again", m)
	}
	if err := p.Delete(t.Context(), provision.Victim{Name: "compute3", ID: ids[3]}); err == nil {
		t.Error("a part is down: what can't be seen is taken for gone")
	}
	if n := len(cloud.Servers()); n != 5 {
		t.Errorf("there are %d servers", n)
	}
}

// A fleet with many failed servers has to be listed in time, also while they are being deleted.
func TestCommandForOpenStackListsFailed(t *testing.T) {
	t.Parallel()
	cloud, environ := openstack(t, novatest.Config{})
	for n := range 8 {
		s := mine(fmt.Sprintf("compute%d", n))
		s.Fault, s.Created = "No valid host was found.", time.Now().Add(time.Duration(n-60)*time.Minute)
		s = cloud.Add(s)
		if n > 0 {
			cloud.Inject(novatest.Fault{Method: "GET", Path: "/servers/" + s.ID, Times: -1, Status: 404})
		}
	}
	machines, err := open(t, environ, "openstack").List(t.Context())
	if err != nil || len(machines) != 8 {
		t.Fatalf("%+v, %v", machines, err)
	}
	for _, m := range machines {
		if m.State != provision.Failed || m.Problem == "" || m.Name == "compute0" && m.Problem != "No valid host was found." {
			t.Errorf("%+v", m)
		}
	}
	shown := 0
	for _, request := range cloud.Asked() {
		if strings.HasPrefix(request, "GET /compute/v2.1/servers/") && !strings.Contains(request, "/detail") {
			shown++
		}
	}
	if shown > 10 { // the client asks again by name where there is no such ID
		t.Errorf("single servers were asked for %d times", shown)
	}
}

// An older server of the name, a stranger's or one that is going, must not hide the one that is there.
func TestCommandForOpenStackFindsItsOwn(t *testing.T) {
	t.Parallel()
	cloud, environ := openstack(t, novatest.Config{})
	stranger, going, own := novatest.Server{Name: "compute1"}, mine("compute1"), mine("compute1")
	going.Status, going.Task = "ACTIVE", "deleting"
	stranger.Created, going.Created = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	cloud.Add(stranger)
	cloud.Add(going)
	own = cloud.Add(own)
	if m, err := open(t, environ, "openstack").Create(t.Context(), serverOrder("compute1")); err != nil || m.ID != own.ID {
		t.Errorf("%+v, %v", m, err)
	}
}

// The join token in a node's userdata must not stay in /tmp when an apply is interrupted.
func TestCommandForOpenStackLeavesNoUserdata(t *testing.T) {
	t.Parallel()
	_, environ := openstack(t, novatest.Config{})
	leavesNoUserdata(t, environ, "openstack", "openstack", "create", serverOrder("compute1"))
}

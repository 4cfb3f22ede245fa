//go:build e2e

package providers

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/testbed/novatest"
)

// openstack starts a cloud, and returns it with the environment of its client.
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

// The tests of the openstack driver rely on novatest: OpenStack's own client must work with it.
func TestOpenStackClientWorksWithNovatest(t *testing.T) {
	t.Parallel()
	cloud, environ := openstack(t, novatest.Config{Build: 100 * time.Millisecond, Deletion: 100 * time.Millisecond})
	client := func(want any, words ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
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
		"--property", "team=core", "--availability-zone", "nova", "--config-drive", "True", "--wait", "web1")
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
	client(nil, "server", "delete", "--wait", "web1")
	if left := cloud.Servers(); len(left) != 0 {
		t.Errorf("%+v", left)
	}
}

package openstack_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

// kindOf returns the kind of an error; "" is an error of unknown outcome.
func kindOf(err error) string {
	var taken *machines.TakenError
	switch {
	case errors.Is(err, machines.ErrQuota):
		return "quota"
	case errors.Is(err, machines.ErrRefused):
		return "refused"
	case errors.Is(err, machines.ErrThrottle):
		return "throttle"
	case errors.As(err, &taken):
		return "taken"
	}
	return ""
}

// The kind of an error decides whether an apply waits, retries or stops.
func TestErrorsHaveKinds(t *testing.T) {
	forbidden := func(message string) string { return `{"forbidden": {"code": 403, "message": "` + message + `"}}` }
	for _, c := range []struct {
		status     int
		header     string
		body, kind string
		wait       time.Duration
	}{
		{403, "", forbidden("Quota exceeded for cores: Requested 4, but already used 20 of 20 cores"), "quota", 0},
		{403, "", forbidden("Quota exceeded, too many servers in group"), "quota", 0},
		{403, "", forbidden("Maximum number of ports exceeded"), "quota", 0},
		{403, "", forbidden("Policy doesn't allow os_compute_api:servers:create to be performed."), "refused", 0},
		{413, "7", `{"overLimit": {"code": 413, "message": "This request was rate-limited.", "retryAfter": "7"}}`, "throttle", 7 * time.Second},
		{413, "", `{"overLimit": {"code": 413, "message": "Quota exceeded for ram"}}`, "quota", 0},
		{429, "30", `{"overLimit": {"code": 429, "message": "This request was rate-limited."}}`, "throttle", 30 * time.Second},
		{429, "", "slow down", "throttle", 10 * time.Second},
		{429, "-5", "", "throttle", time.Second},
		{429, "99999999", "", "throttle", time.Hour},
		{503, "5", "", "throttle", 5 * time.Second},
		{503, "", "<html>No server is available</html>", "", 0},
		{400, "", `{"badRequest": {"code": 400, "message": "Invalid key_name provided."}}`, "refused", 0},
		{409, "", `{"conflictingRequest": {"code": 409, "message": "Multiple possible networks found, use a Network ID to be more specific."}}`, "refused", 0},
		{409, "", `{"conflictingRequest": {"code": 409, "message": "Port is in use"}}`, "", 0},
		{500, "", `{"computeFault": {"code": 500, "message": "Unexpected API Error."}}`, "", 0},
	} {
		cloud, file := cloud(t, novatest.Config{})
		d := open(t, file, func(c *openstack.Config) { c.Late = time.Millisecond })
		f := novatest.Fault{Method: "POST", Path: "/servers", Status: c.status, Body: c.body}
		if c.header != "" {
			f.Header = map[string]string{"Retry-After": c.header}
		}
		cloud.Inject(f)
		_, err := d.Create(t.Context(), order("compute1"))
		if err == nil || kindOf(err) != c.kind {
			t.Errorf("%d %s: kind %q: %v", c.status, c.body, kindOf(err), err)
			continue
		}
		var wait *machines.WaitError
		if errors.As(err, &wait) && wait.After != c.wait {
			t.Errorf("%d %q: wait %v", c.status, c.header, wait.After)
		}
		if strings.ContainsAny(err.Error(), "{<") {
			t.Errorf("the error is %s", err)
		}
		create(t, d, order("compute1")) // and the driver works on
	}
}

// With a quota of two, two machines are made, and the other errors name the quota.
func TestQuotaIsReported(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Quota: 2})
	d := open(t, file)
	create(t, d, order("compute1"))
	create(t, d, order("compute2"))
	for _, name := range []string{"compute3", "compute4"} {
		if _, err := d.Create(t.Context(), order(name)); kindOf(err) != "quota" || !strings.Contains(err.Error(), "already used 2 of 2 instances") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(cloud.Servers()); n != 2 {
		t.Errorf("%d servers exist", n)
	}
}

// An order that Nova would refuse or change must not be sent, and its error must have the remedy.
func TestInvalidOrdersAreRefused(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	before := len(cloud.Asked())
	for why, change := range map[string]func(*machines.Order){
		"`flavor`":           func(o *machines.Order) { o.Flavor = "" },
		"`image`":            func(o *machines.Order) { o.Image = "" },
		"not a hostname":     func(o *machines.Order) { o.Name = ".*" },
		"Nova accepts 49149": func(o *machines.Order) { o.Userdata = make([]byte, 49152) },
		`label "a/b"`:        func(o *machines.Order) { o.Labels = map[string]string{"a/b": "c"} },
		`label "long"`:       func(o *machines.Order) { o.Labels = map[string]string{"long": strings.Repeat("x", 256)} },
	} {
		o := order("compute1")
		change(&o)
		if _, err := d.Create(t.Context(), o); kindOf(err) != "refused" || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if asked := cloud.Asked()[before:]; len(asked) > 0 {
		t.Errorf("the requests are %v", asked)
	}
	o := order("compute1")
	o.Userdata = make([]byte, 49149)
	create(t, d, o)
}

// The error of a missing setting must name it.
func TestOpenErrorsHaveRemedy(t *testing.T) {
	_, file := cloud(t, novatest.Config{})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(wrong, []byte(strings.ReplaceAll(string(text), novatest.Password, "wrong")), 0o600); err != nil {
		t.Fatal(err)
	}
	for why, change := range map[string]func(*openstack.Config){
		"north":                   func(c *openstack.Config) { c.Provider.Cloud = "north" },
		"OS_CLIENT_CONFIG_FILE":   func(c *openstack.Config) { c.CloudsFile = filepath.Join(t.TempDir(), "none") },
		"requires authentication": func(c *openstack.Config) { c.CloudsFile = wrong },
		`region "Mars"`:           func(c *openstack.Config) { c.Provider.Region = "Mars" },
	} {
		config := openstack.Config{Provider: west, Mark: ours, CloudsFile: file}
		change(&config)
		if _, err := openstack.New(t.Context(), config); kindOf(err) != "refused" || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if _, err := openstack.New(t.Context(), openstack.Config{Provider: west, CloudsFile: file}); err == nil {
		t.Error("a driver without a mark was opened")
	}
}

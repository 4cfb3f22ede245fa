// Package novatest is a fake cloud for tests. It models Keystone, Nova, Glance and Neutron to the extent needed to
// create, list and delete servers. It follows their API references and not the driver's requests: Debian's OpenStack
// client works with it too (e2e/providers). It answers 501 for everything that it does not model, to keep tests from
// relying on it.
//
// It owns the model of the cloud and its faults. It must never be linked into a program.
package novatest

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Config is the configuration of a cloud. The zero value is a cloud of one project, without delays and limits.
type Config struct {
	Build    time.Duration // from a server's creation request until ACTIVE
	Deletion time.Duration // from a deletion request until the deletion
	Quota    int           // instances of a project; 0 means no limit
	MaxLimit int           // servers on a page; 0 means 1000, Nova's default
	Newest   int           // 96 means microversion 2.96; so does 0

	Flavors, Images, Networks []Thing // nil means one of each, as the driver's tests expect: see New
	Groups                    []Thing // server groups
}

// Thing has an id and a name, which need not be unique.
type Thing struct{ ID, Name string }

// The user and its projects. OtherProject is another project of the same cloud.
const (
	User         = "pulley"
	Password     = "a secret"
	Project      = "pulley"
	OtherProject = "other-project"
	region       = "RegionOne"
)

// Cloud is a fake cloud. It is an http.Handler, for httptest.NewServer.
type Cloud struct {
	config Config
	mux    *http.ServeMux

	mu      sync.Mutex
	servers []*Server // in the order of creation
	tokens  map[string]token
	faults  []*Fault
	down    map[string]bool
	asked   []string
}

// New creates a cloud.
func New(c Config) *Cloud {
	if c.Flavors == nil {
		c.Flavors = []Thing{{"1", "m1.small"}, {"2", "m1.large"}}
	}
	if c.Images == nil {
		c.Images = []Thing{{"70a599e0-31e7-49b7-b260-868f441e862b", "debian-12"}}
	}
	if c.Networks == nil {
		c.Networks = []Thing{{"e2ba8c3f-8ed2-4c71-a94d-1d7f3c2a9d0e", "front"}}
	}
	c.MaxLimit, c.Newest = cmp.Or(c.MaxLimit, 1000), cmp.Or(c.Newest, 96)
	cloud := &Cloud{config: c, mux: http.NewServeMux(), tokens: map[string]token{}, down: map[string]bool{}}
	cloud.routes()
	return cloud
}

func (c *Cloud) routes() {
	c.keystone()
	c.nova()
	c.glance()
	c.neutron()
	c.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotImplemented, "novatest has no "+r.Method+" "+r.URL.Path)
	})
}

// ServeHTTP answers a request, or applies a fault.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.asked = append(c.asked, r.Method+" "+r.URL.RequestURI())
	c.mu.Unlock()
	if f := c.fault(r); f != nil {
		f.serve(w, r, c.mux)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// Asked returns all requests, in the form "GET /compute/v2.1/servers".
func (c *Cloud) Asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.asked...)
}

// CloudsYAML returns a clouds.yaml with the cloud at a URL, under the name west.
func CloudsYAML(url string) string {
	return fmt.Sprintf(`clouds:
  west:
    auth:
      auth_url: %s/identity/v3
      username: %s
      password: %s
      project_name: %s
      user_domain_id: default
      project_domain_id: default
    region_name: %s
    identity_api_version: 3
`, url, User, Password, Project, region)
}

func base(r *http.Request) string { return "http://" + r.Host }

func version(href, id, status, newest, oldest string) map[string]any {
	return map[string]any{
		"id": id, "status": status, "version": newest, "min_version": oldest, "updated": "2013-07-23T11:33:21Z",
		"links": []any{map[string]any{"rel": "self", "href": strings.TrimSuffix(href, "/") + "/"}},
	}
}

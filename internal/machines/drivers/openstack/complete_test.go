package openstack_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

// eight adds eight machines of the fleet, compute1 the oldest, and returns them.
func eight(cloud *novatest.Cloud) []novatest.Server {
	var all []novatest.Server
	for i := range 8 {
		all = append(all, cloud.Add(novatest.Server{
			Name: fmt.Sprintf("compute%d", i+1), Created: time.Now().Add(time.Duration(i-60) * time.Minute),
			Metadata: map[string]string{"pulley-owner": ours.Owner, "pulley-fleet": ours.Fleet},
		}))
	}
	return all
}

// A missing machine is created again: an incomplete list must be an error.
func TestListIsCompleteOrFails(t *testing.T) {
	pages := func(act func(cloud *novatest.Cloud, r *http.Request, page int)) func(t *testing.T) ([]machines.Machine, error) {
		return func(t *testing.T) ([]machines.Machine, error) {
			cloud, page := novatest.New(novatest.Config{MaxLimit: 3}), 0
			eight(cloud)
			file := behind(t, cloud, func(_ http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/servers/detail") {
					page++
					act(cloud, r, page)
				}
				return false
			})
			return open(t, file).List(t.Context())
		}
	}
	dropMarker := func(_ *novatest.Cloud, r *http.Request, _ int) {
		query := r.URL.Query()
		query.Del("marker")
		r.URL.RawQuery = query.Encode()
	}
	cellDown := func(cloud *novatest.Cloud, _ *http.Request, page int) {
		if page == 2 {
			oldest := cloud.Servers()[0]
			cloud.CellDown(oldest.ID)
		}
	}
	for what, c := range map[string]struct {
		list func(t *testing.T) ([]machines.Machine, error)
		says string
	}{
		"a proxy that drops markers":              {pages(dropMarker), "`marker`"},
		"a part goes down between pages":          {pages(cellDown), "part of the cloud is down"},
		"markers are deleted whenever one looked": {pages(deleteMarker(-1)), "was deleted before the next page"},
	} {
		t.Run(what, func(t *testing.T) {
			machines, err := c.list(t)
			if err == nil || kindOf(err) != "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d of 8 servers are listed: %v", len(machines), err)
			}
		})
	}
	t.Run("a marker is deleted", func(t *testing.T) {
		machines, err := pages(deleteMarker(2))(t)
		if err != nil || len(machines) != 7 {
			t.Errorf("%d of 7 servers are listed: %v", len(machines), err)
		}
	})
}

// A cell that returns just after a lookup must not lead to a second machine.
func TestCreateWhileCellReturns(t *testing.T) {
	cloud := novatest.New(novatest.Config{})
	mine := eight(cloud)[0]
	cloud.CellDown(mine.ID)
	file := behind(t, cloud, func(w http.ResponseWriter, r *http.Request) bool {
		looksFor := r.URL.Query().Has("name") && strings.HasSuffix(r.URL.Path, "/servers/detail")
		if looksFor {
			cloud.ServeHTTP(w, r)
			cloud.CellDown()
		}
		return looksFor
	})
	if m, err := open(t, file).Create(t.Context(), order(mine.Name)); err == nil && m.ID != mine.ID || len(cloud.Servers()) != 8 {
		t.Errorf("Create returned %+v, %v, and there are %d servers", m, err, len(cloud.Servers()))
	}
}

// deleteMarker deletes the server at the end of one page, or of each page where only is negative.
func deleteMarker(only int) func(*novatest.Cloud, *http.Request, int) {
	return func(cloud *novatest.Cloud, r *http.Request, page int) {
		marker := r.URL.Query().Get("marker")
		if marker == "" || only > 0 && page != only {
			return
		}
		end := httptest.NewRequest(http.MethodDelete, "/compute/v2.1/servers/"+marker, http.NoBody)
		end.Header = r.Header
		cloud.ServeHTTP(httptest.NewRecorder(), end)
	}
}

// The maintenance page of a proxy must not count as an empty list.
func TestAnswerWithoutListFails(t *testing.T) {
	group := novatest.Thing{ID: "616fb98f-46ca-475e-917e-2563e5a8cd19", Name: "apart"}
	for _, path := range []string{"/servers/detail", "/servers", "/flavors", "/images", "/networks", "/os-server-groups", "/images/" + imageID, "/networks/" + networkID} {
		for _, body := range []string{`{}`, `null`, `{"error": "maintenance"}`, `{"servers": null, "flavors": null, "images": null, "networks": null, "server_groups": null}`} {
			var on atomic.Bool
			cloud := novatest.New(novatest.Config{Groups: []novatest.Thing{group}})
			file := behind(t, cloud, func(w http.ResponseWriter, r *http.Request) bool {
				if !on.Load() || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, path) {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, body)
				return true
			})
			d := open(t, file, func(c *openstack.Config) { c.Provider.ServerGroup, c.Late = "apart", time.Millisecond })
			on.Store(true)
			o := order("compute1")
			if strings.HasPrefix(path, "/images/") {
				o.Image = imageID
			}
			if strings.HasPrefix(path, "/networks/") {
				o.Networks = []string{networkID}
			}
			if m, err := d.Create(t.Context(), o); err == nil || kindOf(err) != "" || !strings.Contains(err.Error(), "answer has no") || len(cloud.Servers()) != 0 {
				t.Errorf("%s says %s: Create returned %+v, %v", path, body, m, err)
			}
			if m, err := d.List(t.Context()); path == "/servers/detail" && (err == nil || kindOf(err) != "") {
				t.Errorf("List of %s returned %v, %v", body, m, err)
			}
		}
	}
}

const (
	imageID   = "70a599e0-31e7-49b7-b260-868f441e862b"
	networkID = "e2ba8c3f-8ed2-4c71-a94d-1d7f3c2a9d0e"
)

// The answer of a proxy proves neither that a server is deleted nor that it is foreign.
func TestDeleteNeedsServerInAnswer(t *testing.T) {
	cloud := novatest.New(novatest.Config{})
	all := eight(cloud)
	for what, body := range map[string]string{
		"nothing": `{}`,
		"another server of that name": fmt.Sprintf(`{"server": {"id": %q, "name": "compute1", "metadata": {"pulley-owner": %q, "pulley-fleet": %q}}}`,
			all[1].ID, ours.Owner, ours.Fleet),
		"a server of a part that is down": fmt.Sprintf(`{"server": {"id": %q, "status": "UNKNOWN"}}`, all[0].ID),
	} {
		file := behind(t, cloud, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, all[0].ID) {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
			return true
		})
		err := open(t, file).Delete(t.Context(), machines.Ref{Name: "compute1", ID: all[0].ID})
		if err == nil || kindOf(err) != "" || len(cloud.Servers()) != 8 {
			t.Errorf("%s: %v, %d of 8 servers are left", what, err, len(cloud.Servers()))
		}
	}
}

// A proxy that removes markers must not cause an endless loop.
func TestFlavorPagesEnd(t *testing.T) {
	cloud := novatest.New(novatest.Config{MaxLimit: 1})
	file := behind(t, cloud, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/flavors") {
			r.URL.RawQuery = ""
		}
		return false
	})
	ctx := short(t, 5*time.Second)
	o := order("compute1")
	o.Flavor = "m1.large"
	if _, err := open(t, file).Create(ctx, o); err == nil || kindOf(err) != "" || !strings.Contains(err.Error(), "`marker`") {
		t.Errorf("Create returned %v", err)
	}
}

// The cloud's token and the join token in userdata must not follow a redirect.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var got atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		got.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"servers": []}`)
	}))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		var method atomic.Value
		method.Store("")
		file := behind(t, novatest.New(novatest.Config{}), func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method.Load() {
				return false
			}
			http.Redirect(w, r, elsewhere.URL+"/x", status)
			return true
		})
		d := open(t, file)
		method.Store(http.MethodPost)
		_, loginErr := openstack.New(t.Context(), openstack.Config{Provider: west, Mark: ours, CloudsFile: file})
		_, createErr := d.Create(short(t, 10*time.Second), order("compute1")) // it does not wait for a server
		method.Store(http.MethodGet)
		_, listErr := d.List(t.Context())
		for what, err := range map[string]error{"login": loginErr, "Create": createErr, "List": listErr} {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || !strings.Contains(err.Error(), "does not follow the redirect to "+elsewhere.URL+"/x") {
				t.Errorf("%d: %s returned %v", status, what, err)
			}
		}
	}
	if n := got.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

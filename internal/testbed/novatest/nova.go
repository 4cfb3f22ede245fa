package novatest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// handler handles one request to Nova, with its project and microversion (the minor number).
type handler func(w http.ResponseWriter, r *http.Request, project string, micro int)

func (c *Cloud) nova() {
	for route, do := range map[string]handler{
		"GET /servers":          c.listServers(false),
		"GET /servers/detail":   c.listServers(true),
		"POST /servers":         c.createServer,
		"GET /servers/{id}":     c.showServer,
		"DELETE /servers/{id}":  c.deleteServer,
		"GET /flavors":          c.listFlavors,
		"GET /flavors/detail":   c.listFlavors,
		"GET /flavors/{id}":     c.showFlavor,
		"GET /os-server-groups": c.listGroups,
	} {
		method, path, _ := strings.Cut(route, " ")
		c.mux.HandleFunc(method+" /compute/v2.1"+path, c.allowed(c.inMicroversion(do)))
	}
}

// inMicroversion reads both forms of the version header ("Microversion specification" of the API guide).
func (c *Cloud) inMicroversion(do handler) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, project string) {
		asked := r.Header.Get("X-OpenStack-Nova-API-Version")
		if of, v, ok := strings.Cut(r.Header.Get("OpenStack-API-Version"), " "); ok && of == "compute" {
			asked = v
		}
		micro := 1
		if asked != "" {
			n, err := strconv.Atoi(strings.TrimPrefix(asked, "2."))
			if err != nil || n < 1 || n > c.config.Newest {
				fail(w, http.StatusNotAcceptable, fmt.Sprintf("Version %s is not supported by the API. Minimum is 2.1 and maximum is 2.%d.", asked, c.config.Newest))
				return
			}
			micro = n
		}
		w.Header().Set("OpenStack-API-Version", fmt.Sprintf("compute 2.%d", micro))
		w.Header().Set("X-OpenStack-Nova-API-Version", fmt.Sprintf("2.%d", micro))
		w.Header().Set("Vary", "OpenStack-API-Version, X-OpenStack-Nova-API-Version")
		do(w, r, project, micro)
	}
}

func (c *Cloud) listFlavors(w http.ResponseWriter, r *http.Request, _ string, _ int) {
	rest := c.config.Flavors
	if marker := r.URL.Query().Get("marker"); marker != "" {
		i := slices.IndexFunc(rest, func(t Thing) bool { return t.ID == marker })
		if i < 0 {
			fail(w, http.StatusBadRequest, "marker ["+marker+"] not found")
			return
		}
		rest = rest[i+1:]
	}
	limit := c.config.MaxLimit
	flavors := []any{}
	for _, t := range rest[:min(limit, len(rest))] {
		flavors = append(flavors, flavor(t))
	}
	body := map[string]any{"flavors": flavors}
	if len(flavors) == limit {
		body["flavors_links"] = next(r, rest[limit-1].ID)
	}
	answer(w, http.StatusOK, body)
}

func (c *Cloud) showFlavor(w http.ResponseWriter, r *http.Request, _ string, _ int) {
	id := r.PathValue("id")
	i := slices.IndexFunc(c.config.Flavors, func(t Thing) bool { return t.ID == id })
	if i < 0 {
		fail(w, http.StatusNotFound, "Flavor "+id+" could not be found.")
		return
	}
	answer(w, http.StatusOK, map[string]any{"flavor": flavor(c.config.Flavors[i])})
}

func flavor(t Thing) map[string]any {
	return map[string]any{
		"id": t.ID, "name": t.Name, "links": []any{}, "ram": 512, "vcpus": 1, "disk": 1, "swap": "", "OS-FLV-EXT-DATA:ephemeral": 0,
		"rxtx_factor": 1.0, "OS-FLV-DISABLED:disabled": false, "os-flavor-access:is_public": true,
	}
}

func (c *Cloud) listGroups(w http.ResponseWriter, _ *http.Request, _ string, _ int) {
	groups := []any{}
	for _, t := range c.config.Groups {
		groups = append(groups, map[string]any{"id": t.ID, "name": t.Name, "policies": []string{"anti-affinity"}, "members": []string{}, "metadata": map[string]any{}})
	}
	answer(w, http.StatusOK, map[string]any{"server_groups": groups})
}

// next returns the link to the page after a marker.
func next(r *http.Request, marker string) []any {
	query := r.URL.Query()
	query.Set("marker", marker)
	return []any{map[string]any{"rel": "next", "href": base(r) + r.URL.Path + "?" + query.Encode()}}
}

// find returns a project's server. It does not find servers of other projects.
func (c *Cloud) find(project, id string) *Server {
	c.settle()
	i := slices.IndexFunc(c.servers, func(s *Server) bool { return s.ID == id && s.Project == project })
	if i < 0 {
		return nil
	}
	return c.servers[i]
}

func notFound(w http.ResponseWriter, id string) {
	fail(w, http.StatusNotFound, "Instance "+id+" could not be found.")
}

func (c *Cloud) showServer(w http.ResponseWriter, r *http.Request, project string, micro int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(project, r.PathValue("id"))
	switch {
	case s == nil:
		notFound(w, r.PathValue("id"))
	case !c.down[s.ID]:
		answer(w, http.StatusOK, map[string]any{"server": s.view()})
	case micro >= 69:
		answer(w, http.StatusOK, map[string]any{"server": s.partial(true)})
	default:
		fail(w, http.StatusInternalServerError, "Unexpected API Error. Please report this at http://bugs.launchpad.net/nova/ and attach the Nova API log if possible.")
	}
}

// deleteServer is "Delete Server": 204, and the server keeps the task "deleting" until it is deleted.
func (c *Cloud) deleteServer(w http.ResponseWriter, r *http.Request, project string, _ int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(project, r.PathValue("id"))
	switch {
	case s == nil:
		notFound(w, r.PathValue("id"))
		return
	case s.Locked:
		fail(w, http.StatusConflict, "Instance "+s.ID+" is locked")
		return
	case s.ends.IsZero():
		s.ends = time.Now().Add(c.config.Deletion)
	}
	w.WriteHeader(http.StatusNoContent)
}

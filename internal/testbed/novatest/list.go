package novatest

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"net/url"
	"regexp"
	"slices"
)

func randomText() string { return rand.Text() }

// listed are the modelled query parameters. Others are ignored before microversion 2.75, and refused since.
var listed = []string{"name", "status", "limit", "marker", "project_id", "tenant_id", "deleted", "all_tenants", "sort_key", "sort_dir"}

// listServers is "List Servers" and "List Servers Detailed".
func (c *Cloud) listServers(detail bool) handler {
	return func(w http.ResponseWriter, r *http.Request, project string, micro int) {
		query := r.URL.Query()
		for key := range query {
			switch {
			case slices.Contains(listed, key):
			case micro >= 75:
				fail(w, http.StatusBadRequest, "Additional properties are not allowed ('"+key+"' was unexpected)")
				return
			case slices.Contains([]string{"changes-since", "flavor", "image", "ip", "host", "tags"}, key):
				fail(w, http.StatusNotImplemented, "novatest does not filter by "+key)
				return
			}
		}
		if query.Get("all_tenants") != "" && query.Get("all_tenants") != "0" && query.Get("all_tenants") != "False" {
			fail(w, http.StatusForbidden, "Policy doesn't allow os_compute_api:servers:detail:get_all_tenants to be performed.")
			return
		}
		name, err := regexp.Compile("(?i)" + query.Get("name")) // MySQL's REGEXP ignores case
		if err != nil {
			fail(w, http.StatusBadRequest, "Invalid filter: name")
			return
		}
		limit, ok := c.limit(w, r)
		if !ok {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		found, ok := c.page(project, name, query)
		if !ok {
			fail(w, http.StatusBadRequest, "marker ["+query.Get("marker")+"] not found")
			return
		}
		servers := []any{}
		last := ""
		for _, s := range found {
			if len(servers) == limit {
				break
			}
			last = s.ID
			if detail {
				servers = append(servers, s.view(micro))
			} else {
				servers = append(servers, map[string]any{"id": s.ID, "name": s.Name, "links": []any{}})
			}
		}
		body := map[string]any{}
		if len(servers) == limit {
			body["servers_links"] = next(r, last)
		}
		if micro >= 69 && unfiltered(query) {
			for _, s := range c.servers {
				if s.Project == project && c.down[s.ID] {
					servers = append(servers, s.partial(detail))
				}
			}
		}
		body["servers"] = servers
		answer(w, http.StatusOK, body)
	}
}

// page returns a project's servers after the marker, the newest first.
func (c *Cloud) page(project string, name *regexp.Regexp, query url.Values) ([]*Server, bool) {
	var found []*Server
	for _, s := range c.servers {
		status, _, _ := s.now()
		if s.Project == project && !c.down[s.ID] && name.MatchString(s.Name) && status != "SOFT_DELETED" &&
			(query.Get("status") == "" || query.Get("status") == status) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *Server) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.ID, a.ID))
	})
	if marker := query.Get("marker"); marker != "" {
		i := slices.IndexFunc(found, func(s *Server) bool { return s.ID == marker })
		if i < 0 {
			return nil, false
		}
		found = found[i+1:]
	}
	return found, true
}

// unfiltered reports whether servers of unreachable cells are listed: api-guide, "Handling Down Cells".
func unfiltered(query url.Values) bool {
	for key := range query {
		if key != "project_id" && key != "tenant_id" && key != "deleted" {
			return false
		}
	}
	return true
}

package novatest

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"slices"
)

// listed are the modelled query parameters. The clients' own defaults have no effect.
var listed = []string{"name", "marker", "deleted", "all_tenants", "sort_key", "sort_dir"}

// listServers is "List Servers" and "List Servers Detailed".
func (c *Cloud) listServers(detail bool) handler {
	return func(w http.ResponseWriter, r *http.Request, project string, micro int) {
		query := r.URL.Query()
		for key := range query {
			if !slices.Contains(listed, key) {
				fail(w, http.StatusNotImplemented, "novatest does not filter by "+key)
				return
			}
		}
		name, err := regexp.Compile("(?i)" + query.Get("name")) // MySQL's REGEXP ignores case
		if err != nil {
			fail(w, http.StatusBadRequest, "Invalid filter: name")
			return
		}
		limit := c.config.MaxLimit
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
				servers = append(servers, s.view())
			} else {
				servers = append(servers, map[string]any{"id": s.ID, "name": s.Name, "links": []any{}})
			}
		}
		body := map[string]any{}
		if len(servers) == limit {
			body["servers_links"] = next(r, last)
		}
		if micro >= 69 && len(query) == 0 { // api-guide, "Handling Down Cells"
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
		if s.Project == project && !c.down[s.ID] && name.MatchString(s.Name) && s.Status != "SOFT_DELETED" {
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

package novatest

import (
	"net/http"
	"slices"
	"strings"
)

// neutron serves the part of the Networking API that finds networks and security groups.
func (c *Cloud) neutron() {
	c.mux.HandleFunc("GET /network/{$}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, map[string]any{"versions": []any{version(base(r)+"/network/v2.0", "v2.0", "CURRENT", "", "")}})
	})
	c.collection("network", c.config.Networks, ofNetwork)
	c.collection("security-group", securityGroups, func(t Thing, project string) map[string]any {
		return map[string]any{"id": t.ID, "name": t.Name, "project_id": projectID(project), "security_group_rules": []any{}, "stateful": true}
	})
}

// securityGroups are the groups of every project.
var securityGroups = []Thing{{"85cc3048-abc3-43cc-89b3-377341426ac5", "default"}, {"2c1b4dcd-7f3d-4c8e-9d2c-5f0b9a6f3e11", "cluster"}}

// collection serves a list and its entries. A hyphen in the name is an underscore in the objects.
func (c *Cloud) collection(name string, things []Thing, view func(t Thing, project string) map[string]any) {
	key := strings.ReplaceAll(name, "-", "_")
	c.mux.HandleFunc("GET /network/v2.0/"+name+"s", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		query := r.URL.Query()
		found := []any{}
		for _, t := range things {
			if name, id := query.Get("name"), query.Get("id"); (name == "" || name == t.Name) && (id == "" || id == t.ID) {
				found = append(found, view(t, project))
			}
		}
		answer(w, http.StatusOK, map[string]any{key + "s": found})
	}))
	c.mux.HandleFunc("GET /network/v2.0/"+name+"s/{id}", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		id := r.PathValue("id")
		i := slices.IndexFunc(things, func(t Thing) bool { return t.ID == id })
		if i < 0 {
			answer(w, http.StatusNotFound, map[string]any{"NeutronError": map[string]any{
				"type": "NotFound", "message": key + " " + id + " could not be found.", "detail": "",
			}})
			return
		}
		answer(w, http.StatusOK, map[string]any{key: view(things[i], project)})
	}))
}

func ofNetwork(t Thing, project string) map[string]any {
	return map[string]any{
		"id": t.ID, "name": t.Name, "status": "ACTIVE", "admin_state_up": true, "shared": true, "router:external": false,
		"project_id": projectID(project), "tenant_id": projectID(project), "subnets": []string{}, "mtu": 1500,
	}
}

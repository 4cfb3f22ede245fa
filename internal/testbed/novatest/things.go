package novatest

import (
	"net/http"
	"slices"
)

// glance serves the part of the Image API that finds an image.
func (c *Cloud) glance() {
	for _, path := range []string{"GET /image", "GET /image/{$}"} {
		c.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			answer(w, http.StatusMultipleChoices, map[string]any{"versions": []any{version(base(r)+"/image/v2", "v2.9", "CURRENT", "", "")}})
		})
	}
	c.mux.HandleFunc("GET /image/v2/images", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		query := r.URL.Query()
		images := []any{}
		for _, t := range c.config.Images {
			if name := query.Get("name"); (name == "" || name == t.Name) && (query.Get("status") == "" || query.Get("status") == "active") {
				images = append(images, image(t, project))
			}
		}
		answer(w, http.StatusOK, map[string]any{"images": images, "schema": "/v2/schemas/images", "first": "/v2/images"})
	}))
	c.mux.HandleFunc("GET /image/v2/images/{id}", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		i := slices.IndexFunc(c.config.Images, func(t Thing) bool { return t.ID == r.PathValue("id") })
		if i < 0 {
			w.Header().Set("Content-Type", "text/html; charset=UTF-8") // like Glance
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("<html><head><title>404 Not Found</title></head><body><h1>404 Not Found</h1></body></html>"))
			return
		}
		answer(w, http.StatusOK, image(c.config.Images[i], project))
	}))
}

func image(t Thing, project string) map[string]any {
	return map[string]any{
		"id": t.ID, "name": t.Name, "status": "active", "visibility": "public", "owner": projectID(project), "protected": false,
		"disk_format": "qcow2", "container_format": "bare", "min_disk": 0, "min_ram": 0, "size": 1 << 20, "tags": []string{},
		"created_at": "2024-01-01T00:00:00Z", "updated_at": "2024-01-01T00:00:00Z", "file": "/v2/images/" + t.ID + "/file",
		"self": "/v2/images/" + t.ID, "schema": "/v2/schemas/image",
	}
}

// neutron serves the part of the Networking API that finds networks.
func (c *Cloud) neutron() {
	c.mux.HandleFunc("GET /network/{$}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, map[string]any{"versions": []any{version(base(r)+"/network/v2.0", "v2.0", "CURRENT", "", "")}})
	})
	view := func(t Thing, project string) map[string]any {
		return map[string]any{
			"id": t.ID, "name": t.Name, "status": "ACTIVE", "admin_state_up": true, "shared": true, "router:external": false,
			"project_id": projectID(project), "tenant_id": projectID(project), "subnets": []string{}, "mtu": 1500,
		}
	}
	c.mux.HandleFunc("GET /network/v2.0/networks", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		found := []any{}
		for _, t := range c.config.Networks {
			if name := r.URL.Query().Get("name"); name == "" || name == t.Name {
				found = append(found, view(t, project))
			}
		}
		answer(w, http.StatusOK, map[string]any{"networks": found})
	}))
	c.mux.HandleFunc("GET /network/v2.0/networks/{id}", c.allowed(func(w http.ResponseWriter, r *http.Request, project string) {
		id := r.PathValue("id")
		i := slices.IndexFunc(c.config.Networks, func(t Thing) bool { return t.ID == id })
		if i < 0 {
			answer(w, http.StatusNotFound, map[string]any{"NeutronError": map[string]any{
				"type": "NotFound", "message": "Network " + id + " could not be found.", "detail": "",
			}})
			return
		}
		answer(w, http.StatusOK, map[string]any{"network": view(c.config.Networks[i], project)})
	}))
}

package novatest

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"
)

// token is a user's permission and its expiry.
type token struct {
	project string
	until   time.Time
}

func (c *Cloud) keystone() {
	v3 := func(r *http.Request) map[string]any {
		v := version(base(r)+"/identity/v3", "v3.14", "stable", "", "")
		v["media-types"] = []any{map[string]any{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}}
		return v
	}
	for _, path := range []string{"GET /identity/v3", "GET /identity/v3/{$}"} {
		c.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			answer(w, http.StatusOK, map[string]any{"version": v3(r)})
		})
	}
	c.mux.HandleFunc("POST /identity/v3/auth/tokens", c.logIn)
}

// logIn is "Password authentication with scoped authorization" of the Identity API.
func (c *Cloud) logIn(w http.ResponseWriter, r *http.Request) {
	type domain struct{ ID, Name string }
	var body struct {
		Auth struct {
			Identity struct {
				Methods  []string
				Password struct {
					User struct {
						Name, Password string
						Domain         domain
					}
				}
			}
			Scope struct {
				Project struct {
					Name   string
					Domain domain
				}
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		identityError(w, http.StatusBadRequest, err.Error())
		return
	}
	user, project := body.Auth.Identity.Password.User, body.Auth.Scope.Project
	if user.Name != User || user.Password != Password || user.Domain.ID != "default" ||
		project.Name != Project && project.Name != OtherProject || project.Domain.ID != "default" {
		identityError(w, http.StatusUnauthorized, "The request you have made requires authentication.")
		return
	}
	id, until := rand.Text(), time.Now().Add(time.Hour)
	c.mu.Lock()
	c.tokens[id] = token{project: project.Name, until: until}
	c.mu.Unlock()

	var catalog []any
	for _, s := range []struct{ kind, name, path string }{
		{"identity", "keystone", "/identity/v3"},
		{"compute", "nova", "/compute/v2.1"},
		{"image", "glance", "/image"},
		{"network", "neutron", "/network"},
	} {
		catalog = append(catalog, map[string]any{"id": s.kind, "type": s.kind, "name": s.name, "endpoints": []any{map[string]any{
			"id": s.kind, "interface": "public", "region": region, "region_id": region, "url": base(r) + s.path,
		}}})
	}
	names := func(name string) map[string]any {
		return map[string]any{"id": projectID(name), "name": name, "domain": map[string]any{"id": "default", "name": "Default"}}
	}
	w.Header().Set("X-Subject-Token", id)
	answer(w, http.StatusCreated, map[string]any{"token": map[string]any{
		"methods": []string{"password"}, "user": names(user.Name), "project": names(project.Name), "is_domain": false,
		"roles":      []any{map[string]any{"id": "member", "name": "member"}},
		"issued_at":  stamp(time.Now()),
		"expires_at": until.UTC().Format("2006-01-02T15:04:05.000000Z"), "audit_ids": []string{"3T2dc1CGQxyJsHdDu1xkcw"}, "catalog": catalog,
	}})
}

func identityError(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "title": http.StatusText(status)}})
}

// projectID returns 32 hexadecimal digits, like Keystone's ids.
func projectID(name string) string {
	const digits = "0123456789abcdef"
	id := make([]byte, 32)
	for i := range id {
		id[i] = digits[(int(name[i%len(name)])+i)%16]
	}
	return string(id)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// allowed runs a handler with the project of a valid token.
func (c *Cloud) allowed(do func(w http.ResponseWriter, r *http.Request, project string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		t, ok := c.tokens[r.Header.Get("X-Auth-Token")]
		c.mu.Unlock()
		if !ok || time.Now().After(t.until) {
			w.Header().Set("WWW-Authenticate", `Keystone uri="`+base(r)+`/identity"`)
			identityError(w, http.StatusUnauthorized, "The request you have made requires authentication.")
			return
		}
		do(w, r, t.project)
	}
}

// ExpireTokens expires all tokens.
func (c *Cloud) ExpireTokens() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens = map[string]token{}
}

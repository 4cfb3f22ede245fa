package puppetserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Catalog is what a server compiled, without its resources.
type Catalog struct {
	Environment string
	Version     string // config_version: a time unless the environment sets it
	CodeID      string // "" if the server has none
	Resources   int
}

// environmentName is what Puppet accepts.
var environmentName = regexp.MustCompile(`^[a-z0-9_]+$`)

// Compile lets the server compile the catalog of the client's own certname in an environment, and applies nothing. facts may
// be nil. A server without that environment compiles production: the error then has the code EnvironmentMissing. Every
// certificate may compile its own catalog.
func (c *Client) Compile(ctx context.Context, environment string, facts map[string]any) (Catalog, error) {
	name := c.own.Name()
	r := request{
		doing: fmt.Sprintf("compile a catalog of environment %s at %s", environment, c.URL), method: http.MethodPost, accept: typeJSON, timeout: compileTimeout,
		path: "/puppet/v3/catalog/" + url.PathEscape(name) + "?environment=" + url.QueryEscape(environment), contentType: "application/x-www-form-urlencoded",
	}
	if !environmentName.MatchString(environment) {
		return Catalog{}, c.of(r, EnvironmentMissing, environment)
	}
	if facts == nil {
		facts = map[string]any{}
	}
	encoded, err := json.Marshal(map[string]any{"name": name, "values": facts})
	if err != nil {
		return Catalog{}, fmt.Errorf("cannot encode facts: %w", err)
	}
	// Puppet decodes the value of facts a second time.
	r.body = []byte(url.Values{"facts_format": {typeJSON}, "facts": {url.QueryEscape(string(encoded))}}.Encode())
	a, err := c.do(ctx, r)
	switch {
	case err != nil:
		return Catalog{}, err
	case a.status == http.StatusInternalServerError && strings.Contains(a.text(), "Failed to find "+name+" via exec:"): // Puppet's words
		return Catalog{}, &Error{Code: ClassifierFailed, Doing: r.doing, URL: c.URL, Name: name, Text: a.text()}
	case a.status == http.StatusInternalServerError:
		return Catalog{}, &Error{Code: CompileFailed, Doing: r.doing, URL: c.URL, Text: a.text()}
	case a.status != http.StatusOK:
		return Catalog{}, c.refused(r, a)
	}
	catalog, err := parseCatalog(a.body)
	switch {
	case err != nil:
		return Catalog{}, c.unreadable(r, err)
	case catalog.Environment != environment:
		e := c.of(r, EnvironmentMissing, environment)
		e.Text = catalog.Environment
		return catalog, e
	}
	return catalog, nil
}

func parseCatalog(b []byte) (Catalog, error) {
	var wire struct {
		Environment string
		Version     any
		CodeID      string `json:"code_id"`
		Resources   []struct{}
	}
	if err := json.Unmarshal(b, &wire); err != nil {
		return Catalog{}, err
	}
	if wire.Environment == "" {
		return Catalog{}, fmt.Errorf("it names no environment")
	}
	version := ""
	switch v := wire.Version.(type) {
	case string:
		version = v
	case float64:
		version = fmt.Sprintf("%.0f", v)
	}
	return Catalog{wire.Environment, version, wire.CodeID, len(wire.Resources)}, nil
}

package novatest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// order is the body of "Create Server", with what is modelled of its schema (nova/api/openstack/compute/schemas/servers.py).
type order struct {
	Server struct {
		Name        string            `json:"name"`
		Flavor      string            `json:"flavorRef"`
		Image       string            `json:"imageRef"`
		Metadata    map[string]string `json:"metadata"`
		Userdata    *string           `json:"user_data"`
		Zone        string            `json:"availability_zone"`
		KeyName     string            `json:"key_name"`
		ConfigDrive bool              `json:"config_drive"`
		MinCount    int               `json:"min_count"`
		MaxCount    int               `json:"max_count"`
		Networks    []struct {
			UUID string `json:"uuid"`
		} `json:"networks"`
		Groups []struct {
			Name string `json:"name"`
		} `json:"security_groups"`
	} `json:"server"`
	Hints struct {
		Group string `json:"group"`
	} `json:"os:scheduler_hints"`
}

var (
	uuid        = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)
	metadataKey = regexp.MustCompile(`^[a-zA-Z0-9-_:. ]{1,255}$`)
)

// rejection is a message of Nova, in its words.
type rejection string

func (r rejection) Error() string { return string(r) }

// readOrder reads and validates the form of an order.
func readOrder(body io.Reader) (o order, userdata []byte, err error) {
	const most = 114688 // 112 KiB, oslo's default
	raw, err := io.ReadAll(io.LimitReader(body, most+1))
	if err != nil || len(raw) > most {
		return o, nil, rejection("Request is too large.")
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return o, nil, rejection("Malformed request body: " + err.Error())
	}
	invalid := func(field string, value any) (order, []byte, error) {
		return o, nil, rejection(fmt.Sprintf("Invalid input for field/attribute %s. Value: %v.", field, value))
	}
	s := o.Server
	unprintable := strings.ContainsFunc(s.Name, func(r rune) bool { return !unicode.IsPrint(r) })
	if n := len([]rune(s.Name)); n < 1 || n > 255 || unprintable || strings.TrimSpace(s.Name) != s.Name {
		return invalid("name", s.Name)
	}
	if s.Image != "" && !uuid.MatchString(s.Image) {
		return invalid("imageRef", s.Image)
	}
	if o.Hints.Group != "" && !uuid.MatchString(o.Hints.Group) {
		return invalid("group", o.Hints.Group)
	}
	if s.MinCount > 1 || s.MaxCount > 1 {
		return o, nil, errors.New("novatest makes one server at a time")
	}
	for key, value := range s.Metadata {
		if !metadataKey.MatchString(key) || len([]rune(value)) > 255 {
			return invalid("metadata", value)
		}
	}
	for _, n := range s.Networks {
		if !uuid.MatchString(n.UUID) {
			return invalid("uuid", n.UUID)
		}
	}
	if s.Userdata != nil {
		if userdata, err = base64.StdEncoding.DecodeString(*s.Userdata); err != nil || len(*s.Userdata) > 65535 {
			return invalid("user_data", "…")
		}
	}
	return o, userdata, nil
}

// createServer is "Create Server". Like Nova, it answers before the build. A later error sets the server's status to
// ERROR.
func (c *Cloud) createServer(w http.ResponseWriter, r *http.Request, project string, _ int) {
	o, userdata, err := readOrder(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, status, problem := c.make(o, project)
	if problem != "" {
		fail(w, status, problem)
		return
	}
	s.Userdata = userdata
	c.servers = append(c.servers, s)
	w.Header().Set("Location", base(r)+"/compute/v2.1/servers/"+s.ID)
	answer(w, http.StatusAccepted, map[string]any{"server": map[string]any{
		"id": s.ID, "links": []any{map[string]any{"rel": "self", "href": base(r) + "/compute/v2.1/servers/" + s.ID}}, "adminPass": "S5wqy9sPYUvU",
	}})
}

// make checks that the named objects exist. Its messages are those of nova.exception.
func (c *Cloud) make(o order, project string) (*Server, int, string) {
	ask := o.Server
	has := func(things []Thing, id string) int {
		return slices.IndexFunc(things, func(t Thing) bool { return t.ID == id })
	}
	flavor := has(c.config.Flavors, ask.Flavor)
	switch {
	case flavor < 0:
		return nil, http.StatusBadRequest, "Flavor " + ask.Flavor + " could not be found."
	case ask.Image == "":
		return nil, http.StatusBadRequest, "Invalid imageRef provided."
	case has(c.config.Images, ask.Image) < 0:
		return nil, http.StatusBadRequest, "Can not find requested image"
	case ask.KeyName != "" && ask.KeyName != "operators":
		return nil, http.StatusBadRequest, "Invalid key_name provided."
	case ask.Zone != "" && ask.Zone != "nova":
		return nil, http.StatusBadRequest, "The requested availability zone is not available"
	case o.Hints.Group != "" && has(c.config.Groups, o.Hints.Group) < 0:
		return nil, http.StatusBadRequest, "Instance group " + o.Hints.Group + " could not be found."
	case len(ask.Metadata) > 128:
		return nil, http.StatusForbidden, "Maximum number of metadata items exceeds 128"
	}
	var groups []string
	for _, g := range ask.Groups {
		if g.Name != "default" && g.Name != "cluster" {
			return nil, http.StatusBadRequest, "Security group " + g.Name + " not found for project " + projectID(project) + "."
		}
		groups = append(groups, g.Name)
	}
	var networks []string
	for _, n := range ask.Networks {
		if has(c.config.Networks, n.UUID) < 0 {
			return nil, http.StatusBadRequest, "Network " + n.UUID + " could not be found."
		}
		networks = append(networks, n.UUID)
	}
	switch {
	case networks == nil && len(c.config.Networks) > 1:
		return nil, http.StatusConflict, "Multiple possible networks found, use a Network ID to be more specific."
	case networks == nil:
		networks = []string{c.config.Networks[0].ID}
	}
	if used := c.count(project); c.config.Quota > 0 && used >= c.config.Quota {
		return nil, http.StatusForbidden, fmt.Sprintf("Quota exceeded for instances: Requested 1, but already used %d of %d instances", used, c.config.Quota)
	}
	return &Server{
		ID: newUUID(), Name: ask.Name, Project: project, Flavor: c.config.Flavors[flavor], Image: ask.Image, Networks: networks,
		Metadata: ask.Metadata, Created: time.Now().Truncate(time.Second), built: time.Now().Add(c.config.Build),
		Group: o.Hints.Group, Zone: ask.Zone, KeyName: ask.KeyName, ConfigDrive: ask.ConfigDrive, Groups: groups,
	}, 0, ""
}

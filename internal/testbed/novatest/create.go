package novatest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// order is the validated body of "Create Server".
type order struct {
	Server struct {
		Name        string            `json:"name"`
		Flavor      string            `json:"flavorRef"`
		Image       string            `json:"imageRef"`
		Metadata    map[string]string `json:"metadata"`
		Userdata    string            `json:"user_data"`
		Zone        string            `json:"availability_zone"`
		KeyName     string            `json:"key_name"`
		ConfigDrive any               `json:"config_drive"`
		Networks    json.RawMessage   `json:"networks"`
		Groups      []struct {
			Name string `json:"name"`
		} `json:"security_groups"`
	} `json:"server"`
	Hints struct {
		Group string `json:"group"`
	} `json:"os:scheduler_hints"`
}

// createServer is "Create Server". Like Nova, it answers before the build. A later error sets the server's status to
// ERROR.
func (c *Cloud) createServer(w http.ResponseWriter, r *http.Request, project string, micro int) {
	raw, problem := readForm(r.Body, micro)
	if problem != "" {
		fail(w, http.StatusBadRequest, problem)
		return
	}
	var o order
	if err := json.Unmarshal(raw, &o); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, status, problem := c.make(o, project, micro)
	if problem != "" {
		fail(w, status, problem)
		return
	}
	c.servers = append(c.servers, s)
	w.Header().Set("Location", base(r)+"/compute/v2.1/servers/"+s.ID)
	answer(w, http.StatusAccepted, map[string]any{"server": map[string]any{
		"id": s.ID, "links": []any{map[string]any{"rel": "self", "href": base(r) + "/compute/v2.1/servers/" + s.ID}},
		"OS-DCF:diskConfig": "MANUAL", "security_groups": []any{map[string]any{"name": "default"}}, "adminPass": "S5wqy9sPYUvU",
	}})
}

// make checks that the named objects exist. Its messages are those of nova.exception.
func (c *Cloud) make(o order, project string, micro int) (*Server, int, string) {
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
		i := slices.IndexFunc(securityGroups, func(t Thing) bool { return g.Name == t.ID || g.Name == t.Name })
		if i < 0 {
			return nil, http.StatusBadRequest, "Security group " + g.Name + " not found for project " + projectID(project) + "."
		}
		groups = append(groups, securityGroups[i].Name)
	}
	networks, status, problem := c.networksOf(ask.Networks, micro)
	if problem != "" {
		return nil, status, problem
	}
	if used := c.count(project); c.config.Quota > 0 && used >= c.config.Quota {
		return nil, http.StatusForbidden, fmt.Sprintf("Quota exceeded for instances: Requested 1, but already used %d of %d instances", used, c.config.Quota)
	}
	userdata, _ := base64.StdEncoding.DecodeString(ask.Userdata) // readForm has validated it
	s := &Server{
		ID: newUUID(), Name: ask.Name, Project: project, Flavor: c.config.Flavors[flavor], Image: ask.Image, Networks: networks,
		Metadata: ask.Metadata, Userdata: userdata, Created: time.Now().Truncate(time.Second), built: time.Now().Add(c.config.Build),
		Group: o.Hints.Group, Zone: ask.Zone, KeyName: ask.KeyName, ConfigDrive: ask.ConfigDrive == true || ask.ConfigDrive == "True", Groups: groups,
	}
	if len(c.doomed) > 0 {
		s.Fault, c.doomed = c.doomed[0], c.doomed[1:]
	}
	return s, 0, ""
}

// networksOf returns the networks of a server. Without a choice, it is the only network.
func (c *Cloud) networksOf(raw json.RawMessage, micro int) ([]string, int, string) {
	var word string
	var list []struct {
		UUID string `json:"uuid"`
	}
	if raw != nil && json.Unmarshal(raw, &word) != nil {
		_ = json.Unmarshal(raw, &list) // readForm has validated it
	}
	if word == "none" {
		return nil, 0, ""
	}
	if len(list) == 0 {
		if len(c.config.Networks) > 1 {
			return nil, http.StatusConflict, "Multiple possible networks found, use a Network ID to be more specific."
		}
		return []string{c.config.Networks[0].ID}, 0, ""
	}
	var ids []string
	for _, n := range list {
		if !slices.ContainsFunc(c.config.Networks, func(t Thing) bool { return t.ID == n.UUID }) {
			return nil, http.StatusBadRequest, "Network " + n.UUID + " could not be found."
		}
		ids = append(ids, n.UUID)
	}
	return ids, 0, ""
}

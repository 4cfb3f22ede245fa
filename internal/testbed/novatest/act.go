package novatest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
)

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
		answer(w, http.StatusOK, map[string]any{"server": s.view(micro)})
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

// actions are the actions that change a server's status immediately. The required earlier status is not modelled.
var actions = map[string]string{
	"os-stop": "SHUTOFF", "os-start": "", "suspend": "SUSPENDED", "resume": "", "pause": "PAUSED", "unpause": "", "shelve": "SHELVED", "unshelve": "",
}

func (c *Cloud) actOnServer(w http.ResponseWriter, r *http.Request, project string, _ int) {
	var body map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body) != 1 {
		fail(w, http.StatusBadRequest, "Malformed request body")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(project, r.PathValue("id"))
	if s == nil {
		notFound(w, r.PathValue("id"))
		return
	}
	action := slices.Collect(maps.Keys(body))[0]
	status, known := actions[action]
	switch {
	case action == "lock" || action == "unlock":
		s.Locked = action == "lock"
	case !known:
		fail(w, http.StatusNotImplemented, "novatest has no action "+action)
		return
	case s.Locked:
		fail(w, http.StatusConflict, "Instance "+s.ID+" is locked")
		return
	default:
		s.Status = status
	}
	w.WriteHeader(http.StatusAccepted)
}

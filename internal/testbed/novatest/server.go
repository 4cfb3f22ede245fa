package novatest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Server is a server of the cloud.
type Server struct {
	ID, Name string
	Project  string
	Flavor   Thing
	Image    string
	Networks []string
	Metadata map[string]string
	Userdata []byte
	Created  time.Time

	// Set by a test or an action, until the next one: "SHUTOFF", "RESCUE". "" means that the times decide.
	Status, Task string
	Fault        string // if not empty, the build ends with ERROR
	Locked       bool
	Group, Zone  string
	KeyName      string
	ConfigDrive  bool
	Groups       []string // security groups

	built time.Time
	ends  time.Time // zero before its deletion
}

// Add adds a server of the project that it names.
func (c *Cloud) Add(s Server) Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.ID == "" {
		s.ID = newUUID()
	}
	if s.Created.IsZero() {
		s.Created = time.Now()
	}
	if s.Project == "" {
		s.Project = Project
	}
	c.servers = append(c.servers, &s)
	return s
}

// Servers returns all existing servers, of all projects.
func (c *Cloud) Servers() []Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var all []Server
	for _, s := range c.servers {
		copied := *s
		copied.Metadata = maps.Clone(s.Metadata)
		all = append(all, copied)
	}
	return all
}

// Set changes a server, as an operator of the cloud does.
func (c *Cloud) Set(id string, change func(*Server)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if s.ID == id {
			change(s)
		}
	}
}

// CellDown makes the cell of these servers unreachable for Nova. Without ids, all cells are reachable.
func (c *Cloud) CellDown(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = map[string]bool{}
	for _, id := range ids {
		c.down[id] = true
	}
}

// settle removes deleted servers. The caller must hold the lock.
func (c *Cloud) settle() {
	now := time.Now()
	c.servers = slices.DeleteFunc(c.servers, func(s *Server) bool { return !s.ends.IsZero() && !now.Before(s.ends) })
}

// count counts a project's instances. An instance counts until its deletion is complete. The caller must hold the lock.
func (c *Cloud) count(project string) int {
	c.settle()
	n := 0
	for _, s := range c.servers {
		if s.Project == project {
			n++
		}
	}
	return n
}

// now returns a server's status and task_state.
func (s *Server) now() (status, task string) {
	status = "ACTIVE"
	switch {
	case s.Status != "":
		status, task = s.Status, s.Task
	case time.Now().Before(s.built):
		status, task = "BUILD", "spawning"
	case s.Fault != "":
		status = "ERROR"
	}
	if !s.ends.IsZero() {
		task = "deleting"
	}
	return status, task
}

// view returns a server as in an answer of the oldest microversion (nova.api.openstack.compute.views.servers).
func (s *Server) view() map[string]any {
	status, task := s.now()
	v := map[string]any{
		"id": s.ID, "name": s.Name, "status": status, "tenant_id": projectID(s.Project), "user_id": projectID(User),
		"metadata": s.Metadata, "hostId": "", "created": stamp(s.Created), "updated": stamp(s.Created),
		"addresses": map[string]any{}, "links": []any{}, "OS-EXT-AZ:availability_zone": s.Zone, "config_drive": "", "key_name": nil,
		"OS-EXT-STS:task_state": nil, "OS-EXT-STS:power_state": 0, "os-extended-volumes:volumes_attached": []any{},
		"image": map[string]any{"id": s.Image, "links": []any{}}, "flavor": map[string]any{"id": s.Flavor.ID, "links": []any{}},
	}
	if s.Metadata == nil {
		v["metadata"] = map[string]string{}
	}
	if task != "" {
		v["OS-EXT-STS:task_state"] = task
	}
	switch status {
	case "ERROR":
		v["fault"] = map[string]any{"code": 500, "created": stamp(s.built), "message": s.Fault}
	case "ACTIVE":
		v["OS-EXT-STS:power_state"] = 1
		v["addresses"] = map[string]any{"front": []any{map[string]any{"addr": s.address(), "version": 4, "OS-EXT-IPS:type": "fixed"}}}
	}
	return v
}

// partial returns the known fields of a server in an unreachable cell.
func (s *Server) partial(detail bool) map[string]any {
	v := map[string]any{"id": s.ID, "status": "UNKNOWN", "links": []any{}}
	if detail {
		v["tenant_id"], v["created"] = projectID(s.Project), stamp(s.Created)
	}
	return v
}

// address returns an address of the server.
func (s *Server) address() string {
	sum := sha256.Sum256([]byte(s.ID))
	return fmt.Sprintf("10.%d.%d.%d", 1+sum[0]%9, 1+sum[1]%9, 1+sum[2]%9)
}

func newUUID() string {
	b := make([]byte, 16)
	rand.Read(b)
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-8" + h[17:20] + "-" + h[20:]
}

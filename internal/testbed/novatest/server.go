package novatest

import (
	"crypto/sha256"
	"encoding/hex"
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

// Doom makes the next ordered server become ERROR, with a reason.
func (c *Cloud) Doom(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doomed = append(c.doomed, reason)
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

// used counts a project's instances. An instance counts until its deletion is complete.
func (c *Cloud) used(project string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(project)
}

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

// now returns a server's status, task_state and vm_state.
func (s *Server) now() (status, task, vm string) {
	status, task, vm = "ACTIVE", "", "active"
	switch {
	case s.Status != "":
		status, task, vm = s.Status, s.Task, vmStates[s.Status]
	case time.Now().Before(s.built):
		status, task, vm = "BUILD", "spawning", "building"
	case s.Fault != "":
		status, vm = "ERROR", "error"
	}
	if !s.ends.IsZero() {
		task = "deleting"
	}
	return status, task, vm
}

// vmStates are Nova's internal states by status, if the words differ.
var vmStates = map[string]string{
	"SHUTOFF": "stopped", "PAUSED": "paused", "SUSPENDED": "suspended", "RESCUE": "rescued", "SHELVED": "shelved",
	"SHELVED_OFFLOADED": "shelved_offloaded", "ERROR": "error", "BUILD": "building", "VERIFY_RESIZE": "resized", "SOFT_DELETED": "soft-delete",
}

// view returns a server as in an answer. nova.api.openstack.compute.views.servers gives the microversion of each field.
func (s *Server) view(micro int) map[string]any {
	status, task, vm := s.now()
	v := map[string]any{
		"id": s.ID, "name": s.Name, "status": status, "tenant_id": projectID(s.Project), "user_id": projectID(User),
		"metadata": s.Metadata, "hostId": "", "created": stamp(s.Created), "updated": stamp(s.Created),
		"addresses": map[string]any{}, "accessIPv4": "", "accessIPv6": "", "links": []any{}, "OS-DCF:diskConfig": "MANUAL",
		"OS-EXT-AZ:availability_zone": s.Zone, "config_drive": "", "key_name": nil,
		"OS-SRV-USG:launched_at": nil, "OS-SRV-USG:terminated_at": nil,
		"OS-EXT-STS:task_state": nil, "OS-EXT-STS:vm_state": vm, "OS-EXT-STS:power_state": 0,
		"os-extended-volumes:volumes_attached": []any{},
		"image":                                map[string]any{"id": s.Image, "links": []any{}},
	}
	if s.Metadata == nil {
		v["metadata"] = map[string]string{}
	}
	if s.ConfigDrive {
		v["config_drive"] = "True"
	}
	if s.KeyName != "" {
		v["key_name"] = s.KeyName
	}
	if task != "" {
		v["OS-EXT-STS:task_state"] = task
	}
	if micro >= 47 {
		v["flavor"] = map[string]any{"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "original_name": s.Flavor.Name, "extra_specs": map[string]any{}}
	} else {
		v["flavor"] = map[string]any{"id": s.Flavor.ID, "links": []any{}}
	}
	switch status {
	case "ERROR":
		v["fault"] = map[string]any{"code": 500, "created": stamp(s.built), "message": s.Fault}
	case "BUILD":
		v["progress"] = 0
	case "ACTIVE":
		v["progress"], v["OS-EXT-STS:power_state"] = 0, 1
		v["OS-SRV-USG:launched_at"] = s.built.UTC().Format("2006-01-02T15:04:05.000000")
		v["addresses"] = map[string]any{"front": []any{map[string]any{
			"addr": s.address(), "version": 4, "OS-EXT-IPS:type": "fixed", "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01",
		}}}
		v["security_groups"] = []any{map[string]any{"name": "default"}}
	}
	for since, fields := range map[int]map[string]any{
		9: {"locked": s.Locked}, 19: {"description": nil}, 26: {"tags": []string{}}, 63: {"trusted_image_certificates": nil}, 71: {"server_groups": []string{}},
	} {
		if micro >= since {
			maps.Copy(v, fields)
		}
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
	return "10." + digit(sum[0]) + "." + digit(sum[1]) + "." + digit(sum[2])
}

func digit(b byte) string { return string([]byte{'1' + b%9}) }

func newUUID() string {
	sum := sha256.Sum256([]byte(randomText()))
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-8" + h[17:20] + "-" + h[20:]
}

package openstack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"pulley/internal/machines"
)

// Nova's limits (its schema of the request, and the column of its database).
const (
	maxUserdataBytes = 65535 // of base64
	maxValueBytes    = 255   // of metadata
)

var (
	hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	keyPattern      = regexp.MustCompile(`^[a-zA-Z0-9-_:. ]{1,255}$`) // of metadata, as Nova's schema has it
)

// request is the body of "Create Server", of the oldest microversion.
type request struct {
	Server struct {
		Name             string            `json:"name"`
		Flavor           string            `json:"flavorRef"`
		Image            string            `json:"imageRef"`
		Networks         []network         `json:"networks,omitempty"`
		SecurityGroups   []named           `json:"security_groups,omitempty"`
		AvailabilityZone string            `json:"availability_zone,omitempty"`
		KeyName          string            `json:"key_name,omitempty"`
		ConfigDrive      bool              `json:"config_drive,omitempty"`
		Metadata         map[string]string `json:"metadata"`
		Userdata         string            `json:"user_data,omitempty"`
	} `json:"server"`
	Hints *hints `json:"os:scheduler_hints,omitempty"`
}

type network struct {
	ID string `json:"uuid"`
}

type named struct {
	Name string `json:"name"`
}

type hints struct {
	Group string `json:"group"`
}

// Create asks for a server, unless there is one.
func (d *Driver) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if err := check(o); err != nil {
		return machines.Machine{}, fmt.Errorf("cannot order server %q: %w: %w", o.Name, machines.ErrRefused, err)
	}
	have, err := d.settled(ctx, o.Name)
	if err != nil || have != nil {
		return value(have), err
	}
	body, err := d.request(ctx, o)
	if err != nil {
		return machines.Machine{}, err
	}
	failure := d.send(ctx, body)
	if failure != nil && !d.open(o.Name) {
		return machines.Machine{}, cannot(failure, "make server %s", o.Name)
	}
	made, err := d.settled(ctx, o.Name)
	switch {
	case err != nil && failure != nil:
		return machines.Machine{}, fmt.Errorf("%w; then: %w", cannot(failure, "make server %s", o.Name), err)
	case err != nil:
		return machines.Machine{}, err
	case made == nil && failure != nil:
		return machines.Machine{}, cannot(failure, "make server %s", o.Name)
	case made == nil:
		return machines.Machine{}, fmt.Errorf("cannot see server %s: the cloud has taken the order and does not list it", o.Name)
	}
	return *made, nil
}

// check refuses what Nova would refuse, or would make something else of.
func check(o machines.Order) error {
	switch {
	case !hostnamePattern.MatchString(o.Name):
		return errors.New("the name is not a hostname: lower-case letters, digits and hyphens, 63 at most")
	case o.Flavor == "":
		return errors.New("it has no flavor\ngive its role a `flavor:`")
	case o.Image == "":
		return errors.New("it has no image\ngive its role an `image:`")
	case base64.StdEncoding.EncodedLen(len(o.Userdata)) > maxUserdataBytes:
		return fmt.Errorf("its userdata has %d bytes, and Nova takes %d", len(o.Userdata), maxUserdataBytes/4*3)
	}
	for key, value := range o.Labels {
		if !keyPattern.MatchString(key) || len(value) > maxValueBytes {
			return fmt.Errorf("label %q: Nova takes keys of letters, digits, spaces and -_:. and 255 bytes for a key and a value", key)
		}
	}
	return nil
}

// have returns the machine of a name that is there already: the oldest, where two were made at once. Nova would make a
// second one beside a stranger's, and both would have one hostname: that is a *TakenError. One that is being deleted has to be
// gone before: that is a *LaterError.
func (d *Driver) have(ctx context.Context, name string) (*machines.Machine, error) {
	servers, err := d.servers(ctx, name)
	if err != nil {
		return nil, cannot(err, "look for server %s", name)
	}
	d.arrived(name, servers)
	slices.SortFunc(servers, oldest)
	leaving, taken := false, false
	for _, s := range servers {
		switch now, _ := state(s); {
		case gone(s):
		case !d.ours(s):
			taken = true
		case now == machines.Deleting:
			leaving = true
		default:
			m := machine(s)
			return &m, nil
		}
	}
	switch {
	case taken:
		return nil, &machines.TakenError{Name: name}
	case leaving:
		return nil, &machines.LaterError{After: defaultWait / 2, Err: fmt.Errorf("cannot make server %s: one of that name is still being deleted", name)}
	}
	return nil, nil
}

func value(m *machines.Machine) machines.Machine {
	if m == nil {
		return machines.Machine{}
	}
	return *m
}

// request makes the body: it looks up what the order's words stand for.
func (d *Driver) request(ctx context.Context, o machines.Order) (*request, error) {
	var r request
	var err error
	p := d.config.Provider
	s := &r.Server
	if s.Flavor, err = d.find(ctx, "flavor", o.Flavor, d.flavors); err != nil {
		return nil, err
	}
	if s.Image, err = d.find(ctx, "image", o.Image, d.imagesOf); err != nil {
		return nil, err
	}
	for _, word := range o.Networks {
		id, err := d.find(ctx, "network", word, d.networksOf)
		if err != nil {
			return nil, err
		}
		s.Networks = append(s.Networks, network{id})
	}
	if p.ServerGroup != "" {
		id, err := d.find(ctx, "server group", p.ServerGroup, d.serverGroups)
		if err != nil {
			return nil, err
		}
		r.Hints = &hints{Group: id}
	}
	for _, group := range p.SecurityGroups {
		s.SecurityGroups = append(s.SecurityGroups, named{group})
	}
	s.Name, s.AvailabilityZone, s.KeyName, s.ConfigDrive = o.Name, p.AvailabilityZone, p.KeyName, p.ConfigDrive
	s.Userdata = base64.StdEncoding.EncodeToString(o.Userdata)
	s.Metadata = map[string]string{}
	maps.Copy(s.Metadata, o.Labels)
	maps.Copy(s.Metadata, map[string]string{ // after the labels, which must not make a machine somebody else's
		keyOwner: d.config.Mark.Owner, keyFleet: d.config.Mark.Fleet, keyOrder: rand.Text(),
		keyFlavor: o.Flavor, keyImage: o.Image, keyNode: o.Node, keyRole: o.Role,
	})
	return &r, nil
}

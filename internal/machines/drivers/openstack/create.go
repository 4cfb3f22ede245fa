package openstack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http/httptrace"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// Nova's limits (its schema of the request, and the column of its database).
const (
	maxUserdataBytes = 65535 // of base64
	maxValueBytes    = 255   // of metadata
)

var keyPattern = regexp.MustCompile(`^[a-zA-Z0-9-_:. ]{1,255}$`) // of metadata, as Nova's schema has it

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

// Create orders a server, unless it exists.
func (d *Driver) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if err := check(o); err != nil {
		return machines.Machine{}, fmt.Errorf("%w: %w", machines.ErrRefused, err)
	}
	have, err := d.settled(ctx, o.Name)
	if err != nil {
		return machines.Machine{}, err
	}
	if have != nil {
		return *have, nil
	}
	body, err := d.request(ctx, o)
	if err != nil {
		return machines.Machine{}, err
	}
	failure := d.send(ctx, body)
	if failure != nil && !d.open(o.Name) {
		return machines.Machine{}, cause(failure)
	}
	made, err := d.settled(ctx, o.Name)
	switch {
	case err != nil && failure != nil:
		return machines.Machine{}, fmt.Errorf("%w; then: %w", cause(failure), err)
	case err != nil:
		return machines.Machine{}, err
	case made == nil && failure != nil:
		return machines.Machine{}, cause(failure)
	case made == nil:
		return machines.Machine{}, errors.New("the cloud has accepted the order and does not list the server")
	}
	return *made, nil
}

// check refuses an order that Nova would refuse or change.
func check(o machines.Order) error {
	switch {
	case !machines.Hostname.MatchString(o.Name):
		return errors.New("the name is not a hostname: lower-case letters, digits and hyphens, 63 at most")
	case o.Flavor == "":
		return errors.New("the flavor is empty\nset `flavor` of the role")
	case o.Image == "":
		return errors.New("the image is empty\nset `image` of the role")
	case base64.StdEncoding.EncodedLen(len(o.Userdata)) > maxUserdataBytes:
		return fmt.Errorf("the userdata has %d bytes; Nova accepts %d", len(o.Userdata), maxUserdataBytes/4*3)
	}
	for key, value := range o.Labels {
		if !keyPattern.MatchString(key) || len(value) > maxValueBytes {
			return fmt.Errorf("label %q: Nova accepts keys of letters, digits, spaces and -_:. and 255 bytes for a key and a value", key)
		}
	}
	return nil
}

// have returns the existing machine of a name: the oldest, where two were made at once. An unknown server of that name is a
// *TakenError: a second server would have the same hostname. A server that is being deleted is a *LaterError.
func (d *Driver) have(ctx context.Context, name string) (*machines.Machine, error) {
	servers, err := d.servers(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cannot search for the server: %w", cause(err))
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
		return nil, &machines.LaterError{After: defaultWait / 2, Err: fmt.Errorf("a server called %s is still being deleted", name)}
	}
	return nil, nil
}

// request returns the body, with the ids of the order's names.
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
	maps.Copy(s.Metadata, map[string]string{ // after the labels, which must not change the mark
		keyOwner: d.config.Mark.Owner, keyFleet: d.config.Mark.Fleet, keyOrder: rand.Text(),
		keyFlavor: o.Flavor, keyImage: o.Image, keyNode: o.Node, keyRole: o.Role,
	})
	return &r, nil
}

// defaultLate bounds the wait for a server after the answer to its order was lost: Nova continues where a gateway has given up. A server
// that appears later is a second machine of the name, which List returns and a plan shows.
const defaultLate = time.Minute

// The pauses between two looks.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 8 * time.Second
)

// order is an order of unknown outcome.
type order struct {
	id    string    // keyOrder of its server
	until time.Time // when its server is no longer expected
}

// send sends an order. It stays open until its server is listed or its time is over, also when ctx ends before. A refused order is not
// open.
func (d *Driver) send(ctx context.Context, body *request) error {
	name := body.Server.Name
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	_, err := d.compute.Post(traced, d.compute.ServiceURL("servers"), body, nil, &gophercloud.RequestOpts{OkCodes: []int{200, 202}})
	if err == nil || sent.Load() && lost(err) {
		d.mu.Lock()
		d.orders[name] = order{id: body.Server.Metadata[keyOrder], until: time.Now().Add(d.config.Late)}
		d.mu.Unlock()
	}
	return err
}

// lost reports whether a server may appear although its request failed: there was no answer, or that of a gateway.
func lost(err error) bool {
	var again *gophercloud.ErrUnableToReauthenticate
	if errors.As(err, &again) {
		return false // it was refused for the old token
	}
	var answer gophercloud.ErrUnexpectedResponseCode
	if !errors.As(err, &answer) {
		return true
	}
	return answer.Actual >= 500 && !ofNova(answer) && !errors.Is(kind(answer), machines.ErrThrottle)
}

// open reports whether the server of an order may still appear.
func (d *Driver) open(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.orders[name]
	if ok && !time.Now().Before(o.until) {
		delete(d.orders, name)
		return false
	}
	return ok
}

// arrived closes the order of a name where its server is listed.
func (d *Driver) arrived(name string, servers []server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.orders[name]
	if ok && slices.ContainsFunc(servers, func(s server) bool { return s.Metadata[keyOrder] == o.id }) {
		delete(d.orders, name)
	}
}

// settled returns the machine of a name, and nil where there is none. While an order is open, it looks again.
func (d *Driver) settled(ctx context.Context, name string) (*machines.Machine, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		open := d.open(name) // before the look: the last look is after its time
		m, err := d.have(ctx, name)
		if err != nil || m != nil || !open {
			return m, err
		}
		timer := time.NewTimer(min(pause, d.config.Late))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("cannot learn the outcome of an order: %w", ctx.Err())
		}
	}
}

package openstack

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// findingsFor is how long the id of a name is kept. Forty machines of one role need one request.
const findingsFor = time.Minute

// finding is the id of a name.
type finding struct {
	id    string
	until time.Time
}

// thing is a flavor, an image, a network or a server group.
type thing struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

var uuidPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// find returns the id for a word of the environment file, which is an id or a unique name.
func (d *Driver) find(ctx context.Context, what, word string, all func(ctx context.Context, word string) ([]thing, error)) (string, error) {
	key := what + " " + word
	d.mu.Lock()
	known, ok := d.found[key]
	d.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.id, nil
	}
	things, err := all(ctx, word)
	if err != nil {
		return "", fmt.Errorf("cannot find %s %q: %w", what, word, cause(err))
	}
	id, err := choose(what, word, things)
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.found[key] = finding{id: id, until: time.Now().Add(findingsFor)}
	d.mu.Unlock()
	return id, nil
}

// choose returns the thing with that id, or the only one with that name.
func choose(what, word string, things []thing) (string, error) {
	var named []string
	for _, t := range things {
		if t.ID == word {
			return t.ID, nil
		}
		if t.Name == word {
			named = append(named, t.ID)
		}
	}
	switch len(named) {
	case 1:
		return named[0], nil
	case 0:
		return "", fmt.Errorf("cannot find %s %q: %w: it does not exist", what, word, machines.ErrRefused)
	}
	return "", fmt.Errorf("cannot choose %s %q: %w: the name is ambiguous: %s\nuse an id",
		what, word, machines.ErrRefused, strings.Join(named, ", "))
}

// flavors returns all flavors: Nova cannot filter them by name.
func (d *Driver) flavors(ctx context.Context, _ string) ([]thing, error) {
	return pages(func(t thing) string { return t.ID }, func(marker string) ([]thing, bool, error) {
		return read[thing](ctx, d.compute, d.compute.ServiceURL("flavors")+after(marker), "flavors")
	})
}

func after(marker string) string {
	if marker == "" {
		return ""
	}
	return "?marker=" + url.QueryEscape(marker)
}

// imagesOf returns the active images of a name, or the one of an id.
func (d *Driver) imagesOf(ctx context.Context, word string) ([]thing, error) {
	return byWord(ctx, d.images, "images", word, url.Values{"status": {"active"}})
}

// networksOf returns the networks of a name, or the one of an id.
func (d *Driver) networksOf(ctx context.Context, word string) ([]thing, error) {
	return byWord(ctx, d.network, "networks", word, url.Values{})
}

// byWord returns the thing with that id, where the word looks like an id, else those with that name.
func byWord(ctx context.Context, client *gophercloud.ServiceClient, path, word string, query url.Values) ([]thing, error) {
	if uuidPattern.MatchString(word) {
		var one struct {
			thing         // Glance answers with the image
			Network thing `json:"network"`
		}
		err := get(ctx, client, client.ServiceURL(path, word), &one)
		switch {
		case err == nil && !strings.EqualFold(one.ID, word) && !strings.EqualFold(one.Network.ID, word):
			return nil, fmt.Errorf("the cloud's answer has no id %s", word)
		case err == nil:
			return []thing{{ID: word}}, nil
		case !gophercloud.ResponseCodeIs(err, http.StatusNotFound):
			return nil, err
		}
	}
	query.Set("name", word)
	query.Set("limit", "100")
	things, _, err := read[thing](ctx, client, client.ServiceURL(path)+"?"+query.Encode(), path)
	return things, err
}

// serverGroups returns all server groups of the project.
func (d *Driver) serverGroups(ctx context.Context, _ string) ([]thing, error) {
	groups, _, err := read[thing](ctx, d.compute, d.compute.ServiceURL("os-server-groups"), "server_groups")
	return groups, err
}

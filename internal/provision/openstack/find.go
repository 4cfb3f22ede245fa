package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/provision"
)

// findingsFor is how long a name is known to stand for an id. Forty machines of one role ask once.
const findingsFor = time.Minute

// finding is the id of something that has a name.
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

// find returns the id that a word of the environment file stands for: it is an id, or the only name of that kind.
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
		return "", cannot(err, "look for %s %q", what, word)
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

// choose finds the one of things that word means.
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
		return "", fmt.Errorf("cannot find %s %q: %w: the cloud has none of that name or id", what, word, provision.ErrRefused)
	}
	return "", fmt.Errorf("cannot choose %s %q: %w: the name stands for %s\nwrite the id of the one that is meant",
		what, word, provision.ErrRefused, strings.Join(named, ", "))
}

// flavors returns all flavors: Nova can't filter them by name.
func (d *Driver) flavors(ctx context.Context, _ string) ([]thing, error) {
	var all []thing
	for marker := ""; ; {
		var page struct {
			Flavors []thing `json:"flavors"`
			Links   []link  `json:"flavors_links"`
		}
		if err := get(ctx, d.compute, d.compute.ServiceURL("flavors")+after(marker), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Flavors...)
		if !hasNext(page.Links) || len(page.Flavors) == 0 {
			return all, nil
		}
		marker = page.Flavors[len(page.Flavors)-1].ID
	}
}

func after(marker string) string {
	if marker == "" {
		return ""
	}
	return "?marker=" + url.QueryEscape(marker)
}

// imagesOf returns the active images of a name, or the one of an id.
func (d *Driver) imagesOf(ctx context.Context, word string) ([]thing, error) {
	return byWord(ctx, d.images, word, func(query url.Values) ([]thing, error) {
		query.Set("status", "active")
		var page struct {
			Images []thing `json:"images"`
		}
		err := get(ctx, d.images, d.images.ServiceURL("images")+"?"+query.Encode(), &page)
		return page.Images, err
	}, "images")
}

// networksOf returns the networks of a name, or the one of an id.
func (d *Driver) networksOf(ctx context.Context, word string) ([]thing, error) {
	return byWord(ctx, d.network, word, func(query url.Values) ([]thing, error) {
		var page struct {
			Networks []thing `json:"networks"`
		}
		err := get(ctx, d.network, d.network.ServiceURL("networks")+"?"+query.Encode(), &page)
		return page.Networks, err
	}, "networks")
}

// byWord asks for the thing of an id, where the word looks like one, and else for those of a name.
func byWord(ctx context.Context, client *gophercloud.ServiceClient, word string, named func(url.Values) ([]thing, error), path string) ([]thing, error) {
	if uuidPattern.MatchString(word) {
		var raw map[string]any // Glance answers with the image, Neutron with an object that has one
		err := get(ctx, client, client.ServiceURL(path, word), &raw)
		if err == nil {
			return []thing{{ID: word}}, nil
		}
		var answer gophercloud.ErrUnexpectedResponseCode
		if !errors.As(err, &answer) || answer.Actual != http.StatusNotFound {
			return nil, err
		}
	}
	return named(url.Values{"name": {word}, "limit": {"100"}})
}

// serverGroups returns all server groups of the project.
func (d *Driver) serverGroups(ctx context.Context, _ string) ([]thing, error) {
	var page struct {
		Groups []thing `json:"server_groups"`
	}
	err := get(ctx, d.compute, d.compute.ServiceURL("os-server-groups"), &page)
	return page.Groups, err
}

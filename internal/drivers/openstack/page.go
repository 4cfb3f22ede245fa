package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
)

// maxBegins is how often a list is read from its beginning, where what its next page goes on from was deleted meanwhile.
const maxBegins = 3

var (
	errMarker = errors.New("what a page of the list ended with was deleted before the next one was read")
	errStuck  = errors.New("the cloud says that its list goes on and answers with nothing new\nlook whether a proxy drops `marker` from addresses")
)

// link is a reference of an answer. Only that there is a next page is taken from it: a proxy may have made its address wrong.
type link struct {
	Rel string `json:"rel"`
}

// get reads url into answer.
func get(ctx context.Context, client *gophercloud.ServiceClient, url string, answer any) error {
	_, err := client.Get(ctx, url, answer, nil)
	return err
}

// read reads the list that an answer has under a key, and whether there is more of it. An answer without one is an error and
// no empty list: who says 200 may be a proxy, and what is not listed is made again.
func read[T any](ctx context.Context, client *gophercloud.ServiceClient, url, key string) (page []T, more bool, err error) {
	var answer map[string]json.RawMessage
	if err := get(ctx, client, url, &answer); err != nil {
		return nil, false, err
	}
	var list *[]T
	if raw, ok := answer[key]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, false, fmt.Errorf("the cloud's answer has %q in another form: %w", key, err)
		}
	}
	if list == nil {
		return nil, false, fmt.Errorf("the cloud's answer has no list of %q", key)
	}
	var links []link
	if raw, ok := answer[key+"_links"]; ok {
		if err := json.Unmarshal(raw, &links); err != nil {
			return nil, false, fmt.Errorf("the cloud's answer has links in another form: %w", err)
		}
	}
	return *list, slices.ContainsFunc(links, func(l link) bool { return l.Rel == "next" }), nil
}

// pages reads a list of Nova to its end: page reads what comes after a marker, an id, or the beginning.
func pages[T any](id func(T) string, page func(marker string) ([]T, bool, error)) (all []T, err error) {
	for range maxBegins {
		all, err = once(id, page)
		if !errors.Is(err, errMarker) {
			break
		}
	}
	return all, err
}

// once reads a list from its beginning. What moves to another page meanwhile is returned once.
func once[T any](id func(T) string, page func(marker string) ([]T, bool, error)) ([]T, error) {
	var all []T
	seen := map[string]bool{}
	for marker := ""; ; {
		things, more, err := page(marker)
		switch {
		case marker != "" && gophercloud.ResponseCodeIs(err, http.StatusBadRequest): // all else was good for the page before
			return nil, errMarker
		case err != nil:
			return nil, err
		}
		before := len(all)
		for _, t := range things {
			if !seen[id(t)] {
				seen[id(t)] = true
				all = append(all, t)
			}
		}
		switch {
		case !more:
			return all, nil
		case len(all) == before:
			return nil, errStuck
		}
		marker = id(things[len(things)-1])
	}
}

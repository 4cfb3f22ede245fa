package ec2test

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/xml"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Instance is an instance.
type Instance struct {
	ID, Image, Type, Token string
	Tags                   []Tag
	Userdata               []byte
	Launched               time.Time

	runs   time.Time
	listed time.Time
	gone   time.Time // time of its termination; zero before its deletion
}

// Tag is a tag.
type Tag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func newID(prefix string) string {
	id := make([]byte, 9)
	_, _ = rand.Read(id)
	return prefix + hex.EncodeToString(id)[:17]
}

// State returns the name and the code of the instance's state ("InstanceState").
func (i *Instance) State() (string, int) {
	now := time.Now()
	switch {
	case now.Before(i.gone):
		return "shutting-down", 32
	case !i.gone.IsZero():
		return "terminated", 48
	case now.Before(i.runs):
		return "pending", 0
	}
	return "running", 16
}

type state struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type item struct {
	ID      string `xml:"instanceId"`
	Image   string `xml:"imageId"`
	State   state  `xml:"instanceState"`
	Type    string `xml:"instanceType"`
	Launch  string `xml:"launchTime"`
	Private string `xml:"privateIpAddress,omitempty"`
	Token   string `xml:"clientToken,omitempty"`
	Tags    []Tag  `xml:"tagSet>item"`
}

type reservation struct {
	ID        string `xml:"reservationId"`
	Owner     string `xml:"ownerId"`
	Instances []item `xml:"instancesSet>item"`
}

func (i *Instance) reservation() reservation {
	name, code := i.State()
	view := item{ID: i.ID, Image: i.Image, State: state{code, name}, Type: i.Type, Launch: i.Launched.UTC().Format("2006-01-02T15:04:05.000Z"), Token: i.Token, Tags: i.Tags}
	if name == "running" {
		view.Private = "10.0.0.10"
	}
	return reservation{ID: "r-" + i.ID[2:], Owner: "123456789012", Instances: []item{view}}
}

// describe is DescribeInstances with filters. If the region has a page size, it uses pages even if the client did not request them.
func (r *Region) describe(form url.Values) (any, *awsError) {
	start := 0
	if token := take(form, "NextToken"); token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "page-"))
		if err != nil {
			return nil, bad("InvalidNextToken", "The token '%s' is invalid.", token)
		}
		start = n
	}
	found := slices.DeleteFunc(slices.Clone(r.instances), func(i *Instance) bool { return time.Now().Before(i.listed) })
	for n := 1; form.Has("Filter." + strconv.Itoa(n) + ".Name"); n++ {
		name := take(form, "Filter."+strconv.Itoa(n)+".Name")
		values := list(form, "Filter."+strconv.Itoa(n)+".Value")
		if !strings.HasPrefix(name, "tag:") && name != "client-token" {
			return nil, bad("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		found = slices.DeleteFunc(found, func(i *Instance) bool { return !i.matches(name, values) })
	}
	if problem := rest(form); problem != nil {
		return nil, problem
	}
	answer := struct {
		XMLName      xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstancesResponse"`
		RequestID    string        `xml:"requestId"`
		Reservations []reservation `xml:"reservationSet>item"`
		Next         string        `xml:"nextToken,omitempty"`
	}{}
	for n := min(start, len(found)); n < len(found); n++ {
		if n == start+r.config.PageSize {
			answer.Next = "page-" + strconv.Itoa(n)
			break
		}
		answer.Reservations = append(answer.Reservations, found[n].reservation())
	}
	return answer, nil
}

// matches reports whether an instance passes a filter. * and ? in its values are wildcards, as in file names.
func (i *Instance) matches(name string, values []string) bool {
	tags := append([]Tag{{"client-token", i.Token}}, i.Tags...)
	return slices.ContainsFunc(tags, func(t Tag) bool {
		return t.Key == strings.TrimPrefix(name, "tag:") && slices.ContainsFunc(values, func(pattern string) bool {
			ok, err := path.Match(strings.ReplaceAll(pattern, "[", `\[`), t.Value)
			return ok && err == nil || pattern == t.Value
		})
	})
}

type change struct {
	ID       string `xml:"instanceId"`
	Current  state  `xml:"currentState"`
	Previous state  `xml:"previousState"`
}

// terminate is TerminateInstances. A terminated instance is not an error.
func (r *Region) terminate(form url.Values) (any, *awsError) {
	ids := list(form, "InstanceId")
	if problem := rest(form); problem != nil {
		return nil, problem
	}
	answer := struct {
		XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ TerminateInstancesResponse"`
		Changes []change `xml:"instancesSet>item"`
	}{}
	for _, id := range ids {
		n := slices.IndexFunc(r.instances, func(i *Instance) bool { return i.ID == id })
		if n < 0 {
			return nil, bad("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
		}
		i := r.instances[n]
		name, code := i.State()
		if i.gone.IsZero() {
			i.gone = time.Now().Add(r.config.ShuttingDown)
		}
		now, nowCode := i.State()
		answer.Changes = append(answer.Changes, change{id, state{nowCode, now}, state{code, name}})
	}
	return answer, nil
}

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

	runs    time.Time
	listed  time.Time
	stopped bool
	ended   bool
	gone    time.Time // time of its termination
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
	case i.ended && now.Before(i.gone):
		return "shutting-down", 32
	case i.ended:
		return "terminated", 48
	case i.stopped:
		return "stopped", 80
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

// describe is DescribeInstances. If the region has a page size, it uses pages even if the client did not request them.
func (r *Region) describe(form url.Values) (any, *awsError) {
	size := r.config.PageSize
	if most := take(form, "MaxResults"); most != "" {
		n, err := strconv.Atoi(most)
		if err != nil || n < 5 || n > 1000 {
			return nil, bad("InvalidParameterValue", "Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.", most)
		}
		size = min(size, n)
	}
	start := 0
	if token := take(form, "NextToken"); token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "page-"))
		if err != nil {
			return nil, bad("InvalidNextToken", "The token '%s' is invalid.", token)
		}
		start = n
	}
	found, problem := r.find(list(form, "InstanceId"))
	if problem != nil {
		return nil, problem
	}
	if found == nil {
		found = slices.Clone(r.instances)
	}
	for n := 1; form.Has("Filter." + strconv.Itoa(n) + ".Name"); n++ {
		name := take(form, "Filter."+strconv.Itoa(n)+".Name")
		values := list(form, "Filter."+strconv.Itoa(n)+".Value")
		if !strings.HasPrefix(name, "tag:") && !slices.Contains([]string{"instance-id", "instance-state-name", "client-token"}, name) {
			return nil, bad("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		found = slices.DeleteFunc(found, func(i *Instance) bool { return !i.matches(name, values) })
	}
	if problem := rest(form); problem != nil {
		return nil, problem
	}
	found = slices.DeleteFunc(found, func(i *Instance) bool { return time.Now().Before(i.listed) })
	answer := struct {
		XMLName      xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstancesResponse"`
		RequestID    string        `xml:"requestId"`
		Reservations []reservation `xml:"reservationSet>item"`
		Next         string        `xml:"nextToken,omitempty"`
	}{}
	for n := min(start, len(found)); n < len(found); n++ {
		if n == start+size {
			answer.Next = "page-" + strconv.Itoa(n)
			break
		}
		answer.Reservations = append(answer.Reservations, found[n].reservation())
	}
	return answer, nil
}

// matches reports whether an instance passes a filter. * and ? in its values are wildcards, as in file names.
func (i *Instance) matches(name string, values []string) bool {
	var has []string
	switch state, _ := i.State(); name {
	case "instance-id":
		has = []string{i.ID}
	case "instance-state-name":
		has = []string{state}
	case "client-token":
		has = []string{i.Token}
	default:
		for _, t := range i.Tags {
			if t.Key == strings.TrimPrefix(name, "tag:") {
				has = append(has, t.Value)
			}
		}
	}
	for _, value := range has {
		if slices.ContainsFunc(values, func(pattern string) bool {
			ok, err := path.Match(strings.ReplaceAll(pattern, "[", `\[`), value)
			return ok && err == nil || pattern == value
		}) {
			return true
		}
	}
	return false
}

type change struct {
	ID       string `xml:"instanceId"`
	Current  state  `xml:"currentState"`
	Previous state  `xml:"previousState"`
}

// terminate is TerminateInstances. A terminated instance is not an error.
func (r *Region) terminate(form url.Values) (any, *awsError) {
	return r.change(form, "TerminateInstancesResponse", func(i *Instance) {
		if !i.ended {
			i.ended, i.gone = true, time.Now().Add(r.config.ShuttingDown)
		}
	})
}

func (r *Region) stop(form url.Values) (any, *awsError) {
	return r.change(form, "StopInstancesResponse", func(i *Instance) { i.stopped = true })
}

func (r *Region) change(form url.Values, response string, do func(*Instance)) (any, *awsError) {
	found, problem := r.find(list(form, "InstanceId"))
	if problem == nil && found == nil {
		problem = bad("MissingParameter", "The request must contain the parameter InstanceId")
	}
	if problem == nil {
		problem = rest(form)
	}
	if problem != nil {
		return nil, problem
	}
	answer := struct {
		XMLName xml.Name
		Changes []change `xml:"instancesSet>item"`
	}{XMLName: xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/", Local: response}}
	for _, i := range found {
		name, code := i.State()
		do(i)
		now, nowCode := i.State()
		answer.Changes = append(answer.Changes, change{i.ID, state{nowCode, now}, state{code, name}})
	}
	return answer, nil
}

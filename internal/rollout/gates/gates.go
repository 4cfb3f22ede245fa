// Package gates asks the gates of staged rollouts: commands, HTTP checks and Prometheus queries that a file on the machine of
// serve defines by name.
//
// It must never take a command, a URL or a query from etcd: only names come from there.
package gates

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// The limits of gates.
const (
	maxFile        = 1 << 20
	maxAnswer      = 1 << 20 // bytes of an answer that are read
	maxText        = 200     // bytes of an answer that are stored
	defaultTimeout = 30 * time.Second
	grace          = 5 * time.Second // of a command, between the signals
	maxAge         = time.Minute     // of an answer of Prometheus, by its clock
)

// Gate is one definition. It has one of Command, HTTP and Prometheus.
type Gate struct {
	Command    []string       `yaml:"command"`    // passes if it exits with 0
	HTTP       string         `yaml:"http"`       // URL; passes if the status is from 200 to 299
	Prometheus string         `yaml:"prometheus"` // URL of the server
	Query      string         `yaml:"query"`      // passes if it has samples, and none of them is 0 or NaN
	Timeout    model.Duration `yaml:"timeout"`
}

// Load reads the definitions of a file: gates by name, below the key gates.
func Load(file string) (map[string]Gate, error) {
	b, err := bounded.ReadFile(file, maxFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the gates: %w", err)
	}
	var content struct {
		Gates map[string]Gate `yaml:"gates"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the gates of %s: %w", file, err)
	}
	for _, name := range slices.Sorted(maps.Keys(content.Gates)) {
		if err := content.Gates[name].check(); err != nil {
			return nil, fmt.Errorf("cannot use gate %s of %s: %w", name, file, err)
		}
	}
	return content.Gates, nil
}

func (g Gate) check() error {
	kinds := 0
	for _, has := range []bool{len(g.Command) > 0, g.HTTP != "", g.Prometheus != ""} {
		if has {
			kinds++
		}
	}
	switch u, err := url.Parse(cmp.Or(g.HTTP, g.Prometheus)); {
	case kinds != 1:
		return errors.New("it needs one of command, http and prometheus")
	case (g.Prometheus != "") != (g.Query != ""):
		return errors.New("prometheus and query belong together")
	case len(g.Command) == 0 && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""):
		return errors.New("its URL is not like https://prometheus.example:9090")
	case g.Timeout != 0 && (time.Duration(g.Timeout) < time.Second || time.Duration(g.Timeout) > time.Hour):
		return errors.New("its timeout is not from 1s to 1h")
	}
	return nil
}

// About is the rollout that gates check. Commands get it in their environment.
type About struct {
	Environment, Rollout string
	Target               model.Target
}

// Ask asks gates at the same time, each with its deadline. It reads the file each time; "" defines none.
func Ask(ctx context.Context, file string, names []string, about About, now func() time.Time) map[string]rollout.Answer {
	var defined map[string]Gate
	var problem error
	if file != "" {
		defined, problem = Load(file)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[string]rollout.Answer{}
	for _, name := range names {
		gate, known := defined[name]
		all.Go(func() {
			answer := rollout.Answer{Code: rollout.GateUndefined}
			switch {
			case problem != nil:
				answer = unanswered(problem)
			case known:
				ctx, cancel := context.WithTimeout(ctx, cmp.Or(time.Duration(gate.Timeout), defaultTimeout))
				answer = gate.ask(ctx, about, now())
				cancel()
			}
			answer.At = now().UTC().Truncate(time.Second)
			mu.Lock()
			answers[name] = answer
			mu.Unlock()
		})
	}
	all.Wait()
	return answers
}

func (g Gate) ask(ctx context.Context, about About, now time.Time) rollout.Answer {
	switch {
	case len(g.Command) > 0:
		return g.run(ctx, about)
	case g.HTTP != "":
		status, _, err := get(ctx, g.HTTP)
		switch {
		case err != nil:
			return unanswered(err)
		case status < 200 || status > 299:
			return refused(fmt.Sprintf("HTTP status %d", status))
		}
		return passed
	}
	return g.query(ctx, now)
}

var passed = rollout.Answer{Code: rollout.GatePassed}

func refused(text string) rollout.Answer {
	return rollout.Answer{Code: rollout.GateRefused, Text: model.Prose(clip.Line(text, maxText))}
}

// unanswered never has a URL, which may contain a password.
func unanswered(err error) rollout.Answer {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		err = of.Err
	}
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text = "it did not answer in time"
	}
	return rollout.Answer{Code: rollout.GateUnanswered, Text: model.Prose(clip.Line(text, maxText))}
}

// run runs the command of a gate. It gets no setting and no credential of serve, and does not outlive it.
func (g Gate) run(ctx context.Context, about About) rollout.Answer {
	out := &clip.Tail{Limit: maxText}
	err := child.Command{
		Path: g.Command[0], Args: g.Command[1:], Stdout: out, Stderr: out, Grace: grace, Bound: true,
		Env: append(child.Filtered(os.Environ()), "PULLEY_ENVIRONMENT="+about.Environment, "PULLEY_ROLLOUT="+about.Rollout, "PULLEY_RELEASE="+about.Target.Release, fmt.Sprintf("PULLEY_DATA=%d", about.Target.Data)),
	}.Run(ctx)
	exited := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return passed
	case errors.As(err, &exited) && exited.Exited():
		return refused(cmp.Or(out.String(), fmt.Sprintf("exit code %d", exited.ExitCode())))
	}
	return unanswered(err)
}

// get follows no redirect: a page that asks for a password is no answer. It uses no proxy of the environment of serve.
func get(ctx context.Context, address string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, err
	}
	client := &http.Client{
		Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	return resp.StatusCode, body, err
}

// query evaluates the query now. Prometheus stamps each sample with the time of the evaluation, and an old stamp means a cache. See
// https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
func (g Gate) query(ctx context.Context, now time.Time) rollout.Answer {
	status, body, err := get(ctx, strings.TrimSuffix(g.Prometheus, "/")+"/api/v1/query?query="+url.QueryEscape(g.Query))
	if err != nil {
		return unanswered(err)
	}
	if len(body) > maxAnswer {
		return unanswered(errors.New("the answer is longer than 1 MiB: make a query with one sample"))
	}
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" || status != http.StatusOK {
		return unanswered(fmt.Errorf("HTTP status %d: %s", status, cmp.Or(answer.Error, "no answer of Prometheus")))
	}
	samples, oldest, err := samplesOf(answer.Data.ResultType, answer.Data.Result)
	switch {
	case err != nil:
		return unanswered(err)
	case len(samples) == 0:
		return refused("the query has no samples")
	case now.Sub(oldest) > maxAge:
		return unanswered(fmt.Errorf("the answer is %s old: it is that of a cache, or clocks differ", now.Sub(oldest).Round(time.Second)))
	}
	for _, text := range samples {
		switch value, err := strconv.ParseFloat(text, 64); {
		case err != nil && !math.IsInf(value, 0):
			return unanswered(fmt.Errorf("a sample of the query is no number: %.40q", text))
		case value == 0 || math.IsNaN(value): // -0 is 0
			return refused("the query has the value " + text)
		}
	}
	return passed
}

// samplesOf returns the values of a vector or a scalar, as Prometheus writes them, and the time of the oldest.
func samplesOf(kind string, result json.RawMessage) (values []string, oldest time.Time, err error) {
	type sample [2]any // time and value
	var samples []sample
	switch kind {
	case "scalar":
		var one sample
		err = json.Unmarshal(result, &one)
		samples = append(samples, one)
	case "vector":
		var vector []struct{ Value sample }
		err = json.Unmarshal(result, &vector)
		for _, v := range vector {
			samples = append(samples, v.Value)
		}
	default:
		return nil, oldest, fmt.Errorf("the result of the query is a %.20s, not a vector or a scalar", kind)
	}
	for _, s := range samples {
		seconds, timed := s[0].(float64)
		value, ok := s[1].(string)
		if !(ok && timed) && err == nil {
			err = errors.New("a sample of the query has no value or no time")
		}
		if at := time.UnixMilli(int64(seconds * 1000)); oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
		values = append(values, value)
	}
	return values, oldest, err
}

// Package lookup answers, on an operator's machine, what Hiera gives to a node: it runs Puppet's own lookup with the node's release,
// live data, published facts and trusted values.
//
// The code of the release runs on this machine, as it does in a node's run: Hiera's backends, functions, and with Compile the
// manifests.
package lookup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/hieradata"
	"pulley/internal/clip"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/hosts"
	"pulley/internal/model"
	"pulley/internal/publish"
	"pulley/internal/puppet"
	"pulley/internal/release"
)

// Query is a question for a node's data. Zero Release and Generation mean those that are desired for the node.
type Query struct {
	Node, Key  string
	Merge      string // strategy; "" is that of lookup_options
	Release    string
	Generation model.Generation
	Compile    bool // run the manifests first, so that their top-scope variables have values
	Explain    bool
}

// Answer is the value of a key for a node.
type Answer struct {
	Node       string           `json:"node"`
	Key        string           `json:"key"`
	Release    string           `json:"release"`
	Generation model.Generation `json:"data"`
	Found      bool             `json:"found"`
	Sensitive  bool             `json:"sensitive,omitempty"` // Puppet redacted the value, or a part of it
	Value      json.RawMessage  `json:"value,omitempty"`
	Places     []Place          `json:"places,omitempty"` // in the order in which Hiera looked; with Explain
}

// deadline of one lookup: a compilation may take minutes.
const deadline = 10 * time.Minute

// Run answers a query. Its error names the cause: no Puppet on this machine, no published facts, a catalog that does not compile.
func Run(ctx context.Context, s *etcd.DB, ref model.Ref, q Query) (a Answer, err error) {
	f, err := fleet.FindNode(ctx, s, ref, q.Node)
	if err != nil {
		return Answer{}, err
	}
	published, err := fleet.FactsOf(ctx, s, ref, q.Node)
	if err != nil {
		return Answer{}, err
	}
	dir, err := os.MkdirTemp("", "pulley-lookup-")
	if err != nil {
		return Answer{}, fmt.Errorf("cannot look up %s: %w", q.Key, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p := &puppet.Puppet{Dir: dir}
	if err := p.Installed(); err != nil {
		return Answer{}, fmt.Errorf("cannot look up %s: %w on this machine\ninstall it (Debian, Ubuntu: `apt-get install puppet-agent`), or run on %s: pulley-agent puppet -- lookup %s", q.Key, puppet.ErrMissing, q.Node, q.Key)
	}
	role := f.RoleOf(q.Node)
	job := model.Job{
		ID: "lookup", Tree: filepath.Join(dir, "release"), Target: f.Desired(role, q.Node).Wanted(),
		Identity: model.Identity{
			Node: q.Node, Role: role, Environment: ref.String(), PuppetEnvironment: ref.Environment, Certname: certname(published, q.Node),
		},
	}
	if q.Release != "" {
		job.Target.Release = q.Release
	}
	if q.Generation != 0 {
		job.Target.Data = q.Generation
	}
	if job.Target.Release == "" {
		return Answer{}, fmt.Errorf("cannot look up %s for %s: no release is desired there\ngive --release VERSION", q.Key, q.Node)
	}
	r, err := release.In(s).Get(ctx, job.Target.Release)
	if err != nil {
		return Answer{}, err
	}
	if r.PuppetEnvironment != "" {
		return Answer{}, fmt.Errorf("cannot look up %s for %s: release %s names environment %s of a Puppet server, which has the data\n"+
			"run on the server: puppet lookup %s --node %s --environment %s --explain", q.Key, q.Node, r.Version, r.PuppetEnvironment, q.Key, q.Node, r.PuppetEnvironment)
	}
	if err := publish.ExportTree(ctx, release.In(s), r, job.Tree); err != nil {
		return Answer{}, err
	}
	if job.Data, err = layers(ctx, s, ref, job, filepath.Join(dir, "data")); err != nil {
		return Answer{}, err
	}
	if job.Hosts, err = seen(ctx, s, ref, job, dir); err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	a = Answer{Node: q.Node, Key: q.Key, Release: r.Version, Generation: job.Target.Data}
	asked := asked{ctx: ctx, puppet: p, job: job, facts: published.Facts, trusted: published.Trusted, query: q}
	if err := asked.value(&a); err != nil {
		return Answer{}, err
	}
	if q.Explain {
		err = asked.explain(&a)
	}
	return a, err
}

// certname returns the certname of the node's runs.
func certname(n fleet.NodeFacts, node string) string {
	var trusted struct {
		Certname string `json:"certname"`
	}
	if json.Unmarshal(n.Trusted, &trusted) != nil {
		trusted.Certname = ""
	}
	return cmp.Or(trusted.Certname, strings.ToLower(node))
}

// layers writes the node's live data below root and returns its folder; "" without live data.
func layers(ctx context.Context, s *etcd.DB, ref model.Ref, job model.Job, root string) (string, error) {
	if job.Target.Data == 0 {
		return "", nil
	}
	g, err := targets.In(s).Generation(ctx, ref.String(), job.Target.Data)
	if err != nil {
		return "", err
	}
	name, file, err := hosts.EnvironmentFile(job.Tree, ref.Environment)
	if err != nil {
		return "", err
	}
	h, err := hieradata.ReadHierarchy(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the layers of node %s: %s of release %s: %w", job.Node, name, job.Target.Release, err)
	}
	levels := h.Levels(job.Role, job.Node, ref.Stack)
	contents := map[string][]byte{}
	for _, l := range levels {
		if digest, has := g.Layers[l.Layer]; has {
			if contents[digest], err = targets.In(s).Layer(ctx, ref.String(), digest); err != nil {
				return "", err
			}
		}
	}
	data, err := hieradata.Materialise(root, g.Generation, job.Node, levels, contents)
	if err == nil {
		err = hide(data, levels, g.Generation, contents)
	}
	return data, err
}

// hidden stands for each secret: this machine has no identity that decrypts it.
const hidden = "<secret>"

// hide makes the secrets of a folder of data Sensitive, as a run does.
func hide(data string, levels hieradata.Levels, g hieradata.Generation, contents map[string][]byte) error {
	found, keys := map[string]map[string]string{}, []string{} // plaintexts by level
	for _, l := range levels {
		all, err := hieradata.Secrets(contents[g.Layers[l.Layer]])
		if err != nil {
			return fmt.Errorf("cannot read layer %s: %w", l.Layer, err)
		}
		for key := range all {
			all[key] = hidden
		}
		found[l.Name], keys = all, slices.AppendSeq(keys, maps.Keys(all))
	}
	if len(keys) == 0 {
		return nil
	}
	for _, l := range levels {
		text, err := hieradata.Reveal(contents[g.Layers[l.Layer]], found[l.Name], keys)
		if err == nil && text != nil {
			err = os.WriteFile(filepath.Join(data, l.File()), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("cannot hide the secrets of layer %s: %w", l.Layer, err)
		}
	}
	return nil
}

// seen writes the nodes that the node sees as the data file of its runs; "" if it sees none.
func seen(ctx context.Context, s *etcd.DB, ref model.Ref, job model.Job, dir string) (string, error) {
	view, err := hosts.ViewOf(job.Tree, job.Identity)
	if err != nil || view == nil {
		return "", err
	}
	list, exports, err := fleet.In(s).Exports(ctx, ref)
	if err != nil {
		return "", err
	}
	nodes, _ := hosts.Parse(list, exports) // other entries are in no node's data
	var statuses map[string]model.Status
	if view.Alive > 0 {
		if statuses, err = fleet.In(s).Statuses(ctx, ref); err != nil {
			return "", err
		}
	}
	now := time.Now()
	b, err := view.Document(nodes, func(n hosts.Node) bool {
		return n.Signed > 0 && now.Sub(statuses[n.Name].SeenAt) < view.Alive // the node compares no clocks: it remembers its looks
	})
	file := filepath.Join(dir, "hosts.json")
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("cannot write the nodes that %s sees: %w", job.Node, err)
	}
	return file, nil
}

// asked is a query with everything that Puppet needs.
type asked struct {
	ctx     context.Context
	puppet  *puppet.Puppet
	job     model.Job
	facts   map[string]json.RawMessage
	trusted json.RawMessage
	query   Query
}

// The limits of what Puppet prints, in bytes.
const (
	maxAnswer   = 64 << 20
	maxMessages = 64 << 10
)

// redacted is the text that Puppet writes in the place of a Sensitive.
const redacted = "Sensitive [value redacted]"

func (q asked) value(a *Answer) error {
	out, err := q.run("--render-as", "json")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // Puppet prints nothing for a key that no level has
	}
	if err != nil {
		return err
	}
	if out = bytes.TrimSpace(out); !json.Valid(out) {
		return fmt.Errorf("cannot look up %s for %s: puppet printed no JSON: %.200q", q.query.Key, q.query.Node, out)
	}
	a.Found, a.Value, a.Sensitive = true, out, bytes.Contains(out, []byte(redacted))
	return nil
}

// run runs Puppet's lookup. The error is an *exec.ExitError if Puppet printed no message.
func (q asked) run(args ...string) ([]byte, error) {
	args = append([]string{q.query.Key}, args...)
	if q.query.Compile {
		args = append(args, "--compile")
	}
	if q.query.Merge != "" {
		args = append(args, "--merge", q.query.Merge)
	}
	cmd, err := q.puppet.Lookup(q.job, q.facts, q.trusted, args...)
	if err != nil {
		return nil, err
	}
	said := &clip.Tail{Limit: maxMessages}
	cmd.Stderr = said
	out, err := cmd.Output(q.ctx, maxAnswer)
	var exit *exec.ExitError
	switch {
	case q.ctx.Err() != nil:
		return nil, fmt.Errorf("cannot look up %s for %s: %w", q.query.Key, q.query.Node, q.ctx.Err())
	case errors.As(err, &exit) && said.String() != "":
		return nil, fmt.Errorf("cannot look up %s for %s: %s", q.query.Key, q.query.Node, q.relative(said.String()))
	}
	return out, err
}

// relative shortens the messages of Puppet: names of files are those in the release.
func (q asked) relative(text string) string {
	text = strings.TrimPrefix(strings.TrimSpace(text), "Error: ")
	return strings.NewReplacer(q.releaseDir()+"/", "", q.job.Tree+"/", "").Replace(text)
}

// releaseDir is the release's folder as Puppet sees it.
func (q asked) releaseDir() string {
	return filepath.Join(q.puppet.RunDir(q.job.ID), "code", "environments", q.job.PuppetEnvironment)
}

// Merges reports whether Hiera has a merge strategy of this name.
func Merges(strategy string) bool {
	return slices.Contains([]string{"first", "unique", "hash", "deep"}, strategy)
}

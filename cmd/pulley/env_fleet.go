package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/firstboot"
	"pulley/internal/machines"
	"pulley/internal/pki"
	"pulley/internal/store"
	"pulley/internal/trust"
	"pulley/userdata"
)

var _ machines.Fleet = (*fleetOf)(nil)

// tokenSpare is how much longer a machine's token is good than the machine may take.
const tokenSpare = time.Hour

// fleetOf is the fleet that an environment is applied to: the books in etcd, and userdata of machines.
type fleetOf struct {
	*store.Applying
	boot *bootDefaults
	want *environments.Environment
	now  func() time.Time
}

// bootDefaults is what first boots are told where neither the role nor the environment says it, as `pulley userdata` would.
// It is the same for all machines of a fleet.
type bootDefaults struct {
	told      userdata.Options
	endpoints []string // of etcd, the operator's own; for machines that don't join
	cacert    []byte   // what etcd is known by
	pins      []string // of the servers, from the same file
}

// bootDefaults reads what the flags name. c is the verb that has them, added by add; with serve it is serve's own.
func (u *firstBootFlags) bootDefaults(c *cobra.Command, ref environments.Ref) (*bootDefaults, error) {
	u.connection.Fill(u.env)
	if s := u.env.Getenv("PULLEY_SERVERS"); s != "" && !c.Flags().Changed("servers") {
		u.told.Servers = strings.Split(s, ",")
	}
	for _, tell := range []func() error{func() error { return u.signers(ref) }, u.agent, u.ownSteps} {
		if err := tell(); err != nil {
			return nil, err
		}
	}
	config := u.connection.Config()
	u.told.Environment, u.told.Prefix = ref.String(), config.Prefix
	d := &bootDefaults{told: u.told, endpoints: config.Endpoints}
	if config.CACert == "" {
		return d, nil
	}
	var err error
	if d.cacert, err = os.ReadFile(config.CACert); err != nil {
		return nil, fmt.Errorf("cannot read the CA certificate: %w", err)
	}
	d.pins, err = pinsOf(config.CACert)
	return d, err
}

// newFleet is the fleet for a provision.Applier, of an apply that has begun with a. want is the environment that is applied,
// and form how its provider hands out userdata, "" where there is no provider. What a machine of any role could not boot with
// is refused here: nothing is done by then, and no token made. It lasts as long as a.
func (o *options) newFleet(a *store.Applying, want *environments.Environment, form machines.Form, boot *bootDefaults) (*fleetOf, error) {
	f := &fleetOf{Applying: a, boot: boot, want: want, now: o.env.Now}
	if form == "" {
		return f, nil
	}
	for _, r := range want.Roles {
		if r.Cardinality == 0 {
			continue
		}
		n := environments.Node{Role: r.Name, Num: r.Cardinality, Stack: want.Stack} // the one of the longest name
		told, err := f.told(machines.Order{Node: n.String(), Name: n.Hostname(), Role: r.Name}, r)
		if err == nil {
			_, err = payload(told, form)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot make userdata of role %s: %w", r.Name, err)
		}
	}
	return f, nil
}

// Userdata makes what a machine boots with. Where it joins it has a token, which is good for as long as the machine may take,
// and some.
func (f *fleetOf) Userdata(o machines.Order, r environments.Role, form machines.Form) ([]byte, machines.Token, error) {
	var t store.Token
	told, err := f.told(o, r)
	if err == nil && len(told.Servers) > 0 {
		told.Token, t = store.NewToken(t)
		t.Created = f.now().UTC().Truncate(time.Second)
		t.Expires = t.Created.Add(f.want.TimeoutOf(r) + tokenSpare)
	}
	var text []byte
	if err == nil {
		text, err = payload(told, form)
	}
	if err != nil {
		return nil, machines.Token{}, fmt.Errorf("cannot make userdata of %s: %w", o.Node, err)
	}
	return text, machines.Token{ID: t.ID, Hash: t.Hash, Created: t.Created, Expires: t.Expires}, nil
}

// payload renders userdata. What the agent could not read is refused here, not on a machine's console.
func payload(told userdata.Options, form machines.Form) ([]byte, error) {
	plan, err := userdata.Plan(told)
	if err != nil {
		return nil, err
	}
	if _, err := firstboot.ParsePlan("the plan of the first boot", plan); err != nil {
		return nil, err
	}
	return userdata.Render(told, form)
}

// told is what one machine is told, with a token that is none yet: the role's and the environment's words, and what the
// command line says where they say nothing.
func (f *fleetOf) told(o machines.Order, r environments.Role) (userdata.Options, error) {
	words, told := f.want.UserdataOf(r), f.boot.told
	told.Node, told.Role, told.Hostname = o.Node, o.Role, o.Name
	for _, s := range []struct {
		to   *string
		word string
	}{
		{&told.PuppetPackage, words.PuppetPackage}, {&told.PuppetVersion, words.PuppetVersion}, {&told.PackageRepo, words.PackageRepo},
		{&told.Proxy, words.Proxy}, {&told.Schedule, words.Schedule},
	} {
		*s.to = cmp.Or(s.word, *s.to)
	}
	for _, l := range []struct {
		to    *[]string
		words []string
	}{{&told.Servers, words.Servers}, {&told.CA, words.CA}, {&told.Mirrors, words.Mirrors}, {&told.AgentURLs, words.AgentURLs}} {
		if len(l.words) > 0 {
			*l.to = l.words
		}
	}
	if len(words.AgentSHA256) > 0 {
		told.AgentSHA256 = checksums(words.AgentSHA256)
	}
	if words.AllowedSigners != "" {
		told.AllowedSigners = []byte(words.AllowedSigners)
	}
	told.Pre, told.Post = slices.Concat(told.Pre, scripts(words.Pre)), slices.Concat(told.Post, scripts(words.Post))
	told.Steps = maps.Clone(told.Steps)
	for step, instead := range words.Steps {
		if told.Steps == nil {
			told.Steps = map[string]string{}
		}
		told.Steps[step] = instead
	}
	if err := f.maySign(told.AllowedSigners); err != nil {
		return told, err
	}
	return told, f.reach(&told, words)
}

// reach says where a machine joins, or which etcd it asks without joining.
func (f *fleetOf) reach(told *userdata.Options, words environments.Userdata) error {
	told.Endpoints = words.Endpoints
	if len(told.Servers) == 0 {
		if len(told.Endpoints) == 0 {
			told.Endpoints = f.boot.endpoints
		}
		told.CA, told.CACert = nil, f.boot.cacert
		return nil
	}
	told.Token = placeholderToken
	// Beside what is stored, as the CA may be another one since.
	told.CA = slices.Concat(told.CA, f.boot.pins)
	if len(told.CA) == 0 {
		return errors.New("the machine can't know its servers\n" + howToPin)
	}
	pins := make([]string, len(told.CA))
	for i, pin := range told.CA {
		var err error
		if pins[i], err = pki.ParseFingerprint(pin); err != nil {
			return err
		}
	}
	slices.Sort(pins)
	told.CA = slices.Compact(pins)
	return nil
}

// maySign refuses a list of signers that lets nobody sign for this environment: its machines would take nothing, and nobody
// would be there to see.
func (f *fleetOf) maySign(allowed []byte) error {
	if len(bytes.TrimSpace(allowed)) == 0 {
		return nil
	}
	signers, err := trust.ParseSigners(allowed, nil)
	if err != nil {
		return fmt.Errorf("cannot use the allowed signers: %w", err)
	}
	if len(signers.MaySign(trust.Release, f.want.Name, f.now())) == 0 {
		return fmt.Errorf("cannot use the allowed signers: nobody among them may sign for %s\n`pulley key list` shows who may, where and until when", f.want.Name)
	}
	return nil
}

// scripts names the texts of an environment's own steps. A machine runs scripts in the order of their names: these in this
// order, and after those of the command line, which begin with digits.
func scripts(texts []string) []userdata.Step {
	steps := make([]userdata.Step, len(texts))
	for i, text := range texts {
		steps[i] = userdata.Step{Name: fmt.Sprintf("environment-%03d", i+1), Text: []byte(text)}
	}
	return steps
}

// checksums has "" for any architecture, where a file says "any", and digits alone.
func checksums(said map[string]string) map[string]string {
	sums := make(map[string]string, len(said))
	for arch, sum := range said {
		if arch == "any" {
			arch = ""
		}
		sums[arch] = strings.ToLower(strings.TrimPrefix(sum, "sha256:"))
	}
	return sums
}

package steps

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pulley/agent/nodeconfig"
	"pulley/internal/bounded"
	"pulley/internal/firstboot"
	"pulley/internal/schedule"
)

// readPlan reads the file, if it exists. Flags override the plan of a finished first boot.
func (b *boot) readPlan() error {
	named := b.PlanPath != ""
	if !named {
		b.PlanPath = filepath.Join(b.Root, firstboot.PlanPath)
	}
	text, err := bounded.ReadFile(b.PlanPath, nodeconfig.MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the plan of the first boot: %w", err)
	}
	plan, err := firstboot.ParsePlan(b.PlanPath, text)
	if err != nil {
		return err
	}
	b.digest, err = planDigest(plan)
	if err != nil {
		return err
	}
	state, err := b.memory().Load()
	if err != nil {
		return err
	}
	over := !state.Finished.IsZero() && state.Plan == b.digest && state.Machine == nodeconfig.MachineID(b.Root)
	if over && b.From == "" && b.definesNode() {
		return nil
	}
	b.plan, b.planned = plan, true
	if token := cmp.Or(b.Given.Token, plan.Token, b.Env.Getenv("PULLEY_TOKEN")); token != "" {
		sum := sha256.Sum256([]byte(token))
		b.tokenDigest = hex.EncodeToString(sum[:])
	}
	// The old token comes back with old userdata, unless the node left since. A new token is an operator's request that
	// every step checks its work again.
	b.again = over && b.tokenDigest != "" && (!slices.Contains(state.Tokens, b.tokenDigest) || b.joins() && !b.hasIdentity())
	return nil
}

// hasIdentity reports whether an identity exists, valid or not. A node that leaves removes its own.
func (b *boot) hasIdentity() bool {
	_, err := os.Stat(nodeconfig.Under(b.Root).IdentityFile())
	return !errors.Is(err, fs.ErrNotExist)
}

// definesNode reports whether the command line defines the future node. A token alone repeats the join of the plan.
func (b *boot) definesNode() bool {
	return b.Node != "" || b.Role != "" || b.Environment.Name != "" || len(b.Connection.Endpoints) > 0 || len(b.Given.Servers) > 0 ||
		b.Overwrite || b.NoCron || b.Given.Schedule != ""
}

// planDigest returns the digest of a plan without its token: an expired token is replaced.
func planDigest(p firstboot.Plan) (string, error) {
	p.Token = ""
	text, err := p.Encode()
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// override lets flags override the file.
func (b *boot) override() {
	o := &b.Options
	given := b.Given
	given.Node, given.Role, given.Environment = o.Node, o.Role, o.Environment.Name
	given.Prefix, given.CACert, given.Endpoints = o.Connection.Prefix, o.Connection.CACert, o.Connection.Endpoints
	given.AllowedSigners, given.Mirrors = o.AllowedSigners, o.Mirrors
	if b.NoCron {
		given.Steps = map[string]string{string(firstboot.Schedule): firstboot.Off}
	}
	b.plan = given.Over(b.plan).Over(firstboot.Plan{Token: b.Env.Getenv("PULLEY_TOKEN"), Settings: firstboot.Settings{Schedule: schedule.Default}})
	p, i := &b.plan, &b.installer
	i.Package, i.Version, i.Repository = p.PuppetPackage, p.PuppetVersion, p.PackageRepo
	env := b.Env.Getenv
	i.Secure = cmp.Or(p.Proxy, env("https_proxy"), env("HTTPS_PROXY"))
	i.Proxy = cmp.Or(p.Proxy, env("http_proxy"), i.Secure)
	if i.NoProxy = p.NoProxy; len(i.NoProxy) == 0 {
		i.NoProxy = strings.FieldsFunc(cmp.Or(env("no_proxy"), env("NO_PROXY")), func(r rune) bool { return r == ',' || r == ' ' })
	}
	o.Node, o.Role, o.Environment.Name, o.AllowedSigners, o.Mirrors = p.Node, p.Role, p.Environment, p.AllowedSigners, p.Mirrors
	o.Connection.Endpoints, o.Connection.Prefix, o.Connection.CACert = p.Endpoints, p.Prefix, p.CACert
}

// absolute makes paths absolute: cron's runs start in another folder.
func (b *boot) absolute() error {
	c := &b.Connection
	for _, path := range []*string{&b.Path, &c.CACert, &c.Cert, &c.Key, &b.AllowedSigners, &b.RevokedSigners} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("cannot use %s: %w", *path, err)
		}
	}
	return nil
}

// hasJoined reports whether an earlier start of this first boot joined, and this one does not repeat it.
func (b *boot) hasJoined() bool {
	if b.again || b.From == "" && !b.planned || b.repeats(firstboot.Join) {
		return false
	}
	if !b.planned { // an operator with --from knows which steps are done
		return true
	}
	state, err := b.memory().Load()
	return err == nil && state.Machine == nodeconfig.MachineID(b.Root) && state.Plan == b.digest && state.Steps[firstboot.Join].State == firstboot.Done
}

// repeats reports whether --from repeats a step.
func (b *boot) repeats(step firstboot.Name) bool {
	names := firstboot.Names()
	return b.From != "" && slices.Index(names, firstboot.Name(b.From)) <= slices.Index(names, step)
}

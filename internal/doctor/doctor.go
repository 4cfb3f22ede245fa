// Package doctor examines what a fleet rests on in etcd: the cluster, access, certificates, and what nodes left behind.
//
// Checks is the one list of checks; a new check is one value there. A finding is a code with parameters; render.go makes its
// sentence and its remedy. A check judges what facts.go read, and does no I/O. Repairs change only what decides nothing: grants,
// roles and users whose right state follows from the records.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/etcd/kinds"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Severity is how bad a finding is.
type Severity string

// The severities. A problem is broken or open now; a warning will be, or could not be examined.
const (
	Fine    Severity = "ok"
	Warning Severity = "warning"
	Problem Severity = "problem"
)

// Finding is one result of a check. Sentence and Remedy render it.
type Finding struct {
	Check       string   `json:"check"`
	Code        Code     `json:"code"`
	Severity    Severity `json:"severity"`
	Environment string   `json:"environment,omitempty"`
	Node        string   `json:"node,omitempty"`
	Params      Params   `json:"params,omitzero"`
}

// Params are the parameters of a finding; each code uses some.
type Params struct {
	Endpoint string               `json:"endpoint,omitempty"`
	Version  string               `json:"version,omitempty"`
	Needed   string               `json:"needed,omitempty"`   // version
	Used     int64                `json:"used_mib,omitempty"` // of the quota
	Stored   int64                `json:"stored_mib,omitempty"`
	Quota    int64                `json:"quota_mib,omitempty"`
	Subject  string               `json:"subject,omitempty"` // of a certificate
	Ends     time.Time            `json:"ends,omitzero"`
	Role     string               `json:"role,omitempty"`
	User     string               `json:"user,omitempty"`
	Operator string               `json:"operator,omitempty"`
	As       string               `json:"as,omitempty"` // role of the operator
	Have     []string             `json:"have,omitempty"`
	Want     []string             `json:"want,omitempty"`
	Nodes    []string             `json:"nodes,omitempty"`
	Count    int64                `json:"count,omitempty"`
	Count2   int64                `json:"count2,omitempty"`
	Count3   int64                `json:"count3,omitempty"`
	Bytes    int64                `json:"bytes,omitempty"`
	Machine  string               `json:"machine,omitempty"`
	Hostname string               `json:"hostname,omitempty"`
	From     string               `json:"from,omitempty"` // address
	Step     string               `json:"step,omitempty"` // of a first boot
	By       string               `json:"by,omitempty"`
	Seconds  int64                `json:"seconds,omitempty"` // of the time since
	Kind     string               `json:"kind,omitempty"`    // code of a notice, an obstacle, or a failed connection
	Differs  *fleet.Contradiction `json:"differs,omitempty"`
	Disk     *cluster.Disk        `json:"disk,omitempty"` // of etcd
	Key      string               `json:"key,omitempty"`  // of a value in etcd
	Text     model.Prose          `json:"text,omitempty"` // an error, or what a machine reported
	Hint     model.Prose          `json:"hint,omitempty"` // remedy that came with an error
}

// Diagnosis is all findings.
type Diagnosis []Finding

// Worst is the worst severity of all.
func (d Diagnosis) Worst() Severity {
	rank := []Severity{Fine, Warning, Problem}
	worst := Fine
	for _, f := range d {
		if slices.Index(rank, f.Severity) > slices.Index(rank, worst) {
			worst = f.Severity
		}
	}
	return worst
}

// check examines one subject.
type check struct {
	Name   string
	Run    func(*facts) []Finding
	Repair func(context.Context, *etcd.DB, *facts) ([]Finding, error) // nil: --fix repairs nothing
	Always bool                                                       // the repair also works where etcd has no users
}

// checks lists all checks in the order of their findings. Repairs run first, in this order too.
var checks = []check{
	{Name: "answers", Run: answers},
	{Name: "version", Run: versions},
	{Name: "quota", Run: quota},
	{Name: "alarms", Run: alarms, Repair: repairAlarms, Always: true},
	{Name: "disk", Run: disk},
	{Name: "tls", Run: transport},
	{Name: "auth", Run: auth},
	{Name: "root", Run: root},
	{Name: "certificate", Run: certificates},
	{Name: "installation", Run: nothing, Repair: repairInstallation},
	{Name: "grants", Run: grants, Repair: repairGrants},
	{Name: "users", Run: users},
	{Name: "operators", Run: operators},
	{Name: "readable", Run: readable},
	{Name: "contradictions", Run: contradictions},
	{Name: "statements", Run: statements},
	{Name: "signatures", Run: signatures},
	{Name: "secrets", Run: unreadableSecrets},
	{Name: "flood", Run: floods},
	{Name: "duplicate", Run: duplicates},
	{Name: "machine_id", Run: machineIDs},
	{Name: "claims", Run: claims},
	{Name: "first_boot", Run: firstBoots},
	{Name: "turns", Run: turns},
	{Name: "machines", Run: machineRecords},
	{Name: "applying", Run: applying},
	{Name: "previews", Run: previews},
	{Name: "leftovers", Run: leftovers, Repair: repairLeftovers},
	{Name: "cleanups", Run: cleanups},
	{Name: "notices", Run: notices},
	{Name: "nodes", Run: nodes}, // and fine where no check found anything about an environment
}

func nothing(*facts) []Finding { return nil }

// Examine runs all checks, with fix after their repairs. An error is only that etcd did not answer, or that a repair failed.
func Examine(ctx context.Context, st *etcd.DB, c etcd.Config, now time.Time, fix bool) (Diagnosis, error) {
	f, err := read(ctx, st, c, now)
	if err != nil {
		return nil, err
	}
	var d Diagnosis
	if fix && (f.access.Admin || !f.access.On) {
		for _, check := range checks {
			if check.Repair == nil || !f.access.On && !check.Always {
				continue
			}
			found, err := check.Repair(ctx, st, f)
			d = append(d, named(check.Name, found)...)
			if err != nil {
				return d, err
			}
		}
		if f, err = read(ctx, st, c, now); err != nil {
			return d, err
		}
	}
	for _, check := range checks {
		d = append(d, named(check.Name, check.Run(f))...)
	}
	for _, e := range f.environments {
		env := e.ref.String()
		if !slices.ContainsFunc(d, func(f Finding) bool { return f.Environment == env && f.Severity != Fine }) {
			d = append(d, Finding{Check: "nodes", Code: nodesFine, Severity: Fine, Environment: env, Params: Params{Count: int64(len(e.hosts))}})
		}
	}
	return d, nil
}

func named(check string, found []Finding) []Finding {
	for i := range found {
		found[i].Check = check
	}
	return found
}

// Delete deletes keys that cannot be read, after sure agreed to their list. A key that can be read is an error.
func Delete(ctx context.Context, st *etcd.DB, keys []string, sure func([]kinds.Unreadable) error) error {
	all, _, err := Unreadable(ctx, st)
	if err != nil {
		return err
	}
	var found []kinds.Unreadable
	of := map[string]model.Ref{}
	for _, key := range keys {
		for ref, some := range all {
			for _, u := range some {
				if u.Key == key {
					found, of[key] = append(found, u), ref
				}
			}
		}
		if _, is := of[key]; !is {
			return fmt.Errorf("cannot delete key %s: it does not exist, or it can be read\nrun `pulley doctor`: it lists the keys that cannot be read", key)
		}
	}
	if err := sure(found); err != nil {
		return err
	}
	for _, u := range found {
		if err := DeleteUnreadable(ctx, st, of[u.Key], u); err != nil {
			return err
		}
	}
	return nil
}

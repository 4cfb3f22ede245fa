package doctor

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki/connect"
)

// Bounds of what the checks accept.
const (
	quotaTight = 60                  // percent of the quota in use: a warning
	quotaFull  = 80                  // a problem
	diskFull   = 256 << 20           // bytes that are free on etcd's disk: less is a problem
	endsSoon   = 14 * 24 * time.Hour // of certificates that nothing renews by itself
)

func answers(f *facts) (all []Finding) {
	for _, m := range f.cluster.members {
		if m.err != nil {
			p := Params{Endpoint: m.Endpoint, Text: model.Prose(m.err.Error())}
			var why *connect.Failure
			if errors.As(m.err, &why) {
				p.Kind, p.Text, p.Hint = string(why.Code), model.Prose(why.Cause()), model.Prose(why.Hint())
			}
			all = append(all, Finding{Code: etcdSilent, Severity: Problem, Params: p})
			continue
		}
		all = append(all, Finding{Code: etcdAnswers, Severity: Fine, Params: Params{Endpoint: m.Endpoint}})
	}
	return all
}

func versions(f *facts) (all []Finding) {
	for _, m := range f.cluster.members {
		if m.err != nil {
			continue
		}
		p := Params{Endpoint: m.Endpoint, Version: m.Version}
		if need, yes := cluster.Outdated(m.Version); yes {
			p.Needed = need
			all = append(all, Finding{Code: etcdVulnerable, Severity: Problem, Params: p})
			continue
		}
		all = append(all, Finding{Code: etcdVersionFine, Severity: Fine, Params: p})
	}
	return all
}

func quota(f *facts) (all []Finding) {
	for _, m := range f.cluster.members {
		if m.err != nil {
			continue
		}
		p := Params{Endpoint: m.Endpoint, Used: m.Used >> 20, Stored: m.Stored >> 20, Quota: m.Quota >> 20}
		found := Finding{Code: quotaUse, Severity: Fine, Params: p}
		switch {
		case m.Quota <= 0:
			found.Code, found.Severity = quotaUnknown, Warning
		case m.Used*100/m.Quota >= quotaFull:
			found.Severity = Problem
		case m.Used*100/m.Quota >= quotaTight:
			found.Severity = Warning
		case m.Stored*100/m.Quota >= quotaFull:
			found.Code, found.Severity = quotaFragmented, Warning
		}
		all = append(all, found)
	}
	return all
}

func alarms(f *facts) []Finding {
	switch k := f.cluster; {
	case slices.Contains(k.alarms, cluster.AlarmNoSpace):
		return []Finding{{Code: etcdFull, Severity: Problem}}
	case slices.Contains(k.alarms, cluster.AlarmCorrupt):
		return []Finding{{Code: etcdCorrupt, Severity: Problem}}
	case k.alarmsErr != nil:
		return []Finding{{Code: alarmsUnreadable, Severity: Warning, Params: Params{Text: model.Prose(k.alarmsErr.Error())}}}
	}
	return []Finding{{Code: noAlarm, Severity: Fine}}
}

// disk is silent about a disk with room: only an etcd in serve has a record of its disk.
func disk(f *facts) []Finding {
	switch d := f.cluster.disk; {
	case d == nil:
		return nil
	case d.Free < diskFull:
		return []Finding{{Code: diskLow, Severity: Problem, Params: Params{Disk: d}}}
	default:
		return []Finding{{Code: diskLow, Severity: Warning, Params: Params{Disk: d}}}
	}
}

// fragmented reports whether a defragmentation of etcd's file helps: the file has more than half of the quota, most of it free space,
// as a prune leaves it behind; or the file is so large that publish refuses content, and a twentieth of the quota is free in it.
func (m member) fragmented() bool {
	half := m.Stored > m.Quota/2 && m.Stored > 2*m.Used
	return m.err == nil && m.Quota > 0 && (half || m.Stored*100 > m.Quota*70 && (m.Stored-m.Used)*20 >= m.Quota)
}

// repairAlarms makes room in a full etcd, and in one whose files contain mostly free space.
func repairAlarms(ctx context.Context, st *etcd.DB, f *facts) ([]Finding, error) {
	if !slices.Contains(f.cluster.alarms, cluster.AlarmNoSpace) {
		warned := slices.ContainsFunc(quota(f), func(f Finding) bool { return f.Code == quotaFragmented })
		if !warned && !slices.ContainsFunc(f.cluster.members, member.fragmented) {
			return nil, nil
		}
		freed, err := cluster.In(st).MakeRoom(ctx)
		return []Finding{{Code: etcdDefragmented, Severity: Warning, Params: Params{Bytes: freed}}}, err
	}
	freed, healed, err := cluster.In(st).Heal(ctx, cluster.TightPercent)
	var tight *cluster.TightError
	switch {
	case errors.As(err, &tight):
		return []Finding{{Code: etcdTight, Severity: Problem, Params: Params{Endpoint: tight.Endpoint, Hint: model.Prose(tight.Hint())}}}, nil
	case err != nil || !healed:
		return nil, err
	}
	return []Finding{{Code: etcdHealed, Severity: Warning, Params: Params{Bytes: freed}}}, nil
}

func transport(f *facts) (all []Finding) {
	for _, e := range f.cluster.plain {
		u, err := url.Parse(e)
		if err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()) {
			all = append(all, Finding{Code: plainTextLoopback, Severity: Warning, Params: Params{Endpoint: e}})
			continue
		}
		all = append(all, Finding{Code: plainText, Severity: Problem, Params: Params{Endpoint: e}})
	}
	switch {
	case f.cluster.anonymous != "":
		all = append(all, Finding{Code: noClientCertificates, Severity: Problem, Params: Params{Endpoint: f.cluster.anonymous}})
	case len(f.cluster.plain) == 0:
		all = append(all, Finding{Code: tlsFine, Severity: Fine})
	}
	return all
}

func auth(f *facts) []Finding {
	switch {
	case !f.access.On && len(f.cluster.plain) == 0:
		return []Finding{{Code: authOff, Severity: Problem}}
	case !f.access.On:
		return []Finding{{Code: authOffPlainText, Severity: Warning}}
	}
	return []Finding{{Code: authOn, Severity: Fine}}
}

func root(f *facts) []Finding {
	switch {
	case !f.access.On:
		return nil
	case f.cluster.password:
		return []Finding{{Code: rootPassword, Severity: Problem}}
	}
	return []Finding{{Code: rootFine, Severity: Fine}}
}

// certificates judges those of etcd and of this program, then those of nodes and operators.
func certificates(f *facts) (all []Finding) {
	slices.SortStableFunc(f.cluster.certs, func(a, b certificate) int { return a.until.Compare(b.until) })
	for _, c := range f.cluster.certs {
		p := Params{Kind: string(c.kind), Subject: c.name, Ends: c.until.UTC()}
		found := Finding{Code: certificateEnds, Severity: Fine, Params: p}
		switch left := c.until.Sub(f.now); {
		case left <= 0:
			found.Code, found.Severity = certificateEnded, Problem
		case left < min(endsSoon, c.until.Sub(c.from)/4):
			found.Severity = Warning
		}
		all = append(all, found)
	}
	for _, e := range f.environments {
		for node, i := range sorted(e.identities) {
			if !i.Live() || i.Until.IsZero() {
				continue
			}
			found := Finding{Severity: Problem, Code: nodeCertificateEnded, Environment: e.ref.String(), Node: node, Params: Params{Ends: i.Until.UTC()}}
			switch left := i.Until.Sub(f.now); {
			case left <= 0:
			case left < i.Until.Sub(i.Issued)/6: // the node renews when a third is left
				found.Severity, found.Code = Warning, nodeCertificateEnds
			default:
				continue
			}
			all = append(all, found)
		}
	}
	for name, o := range sorted(f.operators) {
		if !o.Live() || o.Until.IsZero() {
			continue
		}
		found := Finding{Severity: Warning, Code: operatorCertificateEnds, Params: Params{Operator: name, As: string(o.As), Ends: o.Until.UTC()}}
		switch left := o.Until.Sub(f.now); {
		case left <= 0:
			found.Code = operatorCertificateEnded
		case left >= min(endsSoon, o.Until.Sub(o.Issued)/4):
			continue
		}
		all = append(all, found)
	}
	return all
}

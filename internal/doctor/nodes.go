package doctor

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd/kinds"
	"pulley/internal/fleet"
	"pulley/internal/hosts"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/pki"
)

// Bounds of what the checks accept of nodes.
const (
	keysOfOneNode = 64               // a node keeps at most 20 run records
	floodsOn      = 10 * time.Minute // a flood that was seen within this time continues
	applyTakes    = time.Hour        // a longer apply waits for something
	previewTakes  = 15 * time.Minute // a longer preview was ordered with a longer --wait
	turnsWait     = 5 * time.Minute  // a machine that waits longer for its turn is kept from it
	turnsAsked    = 2 * time.Minute  // a waiting machine asks at least once a minute
	sendingTakes  = 15 * time.Minute // a living serve sends a notice within this time, retries included
	stillReports  = time.Hour        // a machine that is not on the host list, and reported within this time, runs
	someOf        = 5                // nodes that a finding names

	mostUnreadable = 100 // keys of an environment, and of none, that are listed
)

func readable(f *facts) (all []Finding) {
	of := func(env string, damaged []kinds.Unreadable, unread []error) {
		for i, u := range damaged {
			if i == mostUnreadable {
				all = append(all, Finding{Code: moreUnreadable, Severity: Problem, Environment: env, Params: Params{Count: int64(len(damaged) - i)}})
				break
			}
			all = append(all, Finding{Code: unreadable, Severity: Problem, Environment: env, Node: u.Node, Params: Params{Text: model.Prose(u.Error()), Key: u.Key}})
		}
		for _, err := range unread {
			all = append(all, Finding{Code: unexamined, Severity: Warning, Environment: env, Params: Params{Text: model.Prose(err.Error())}})
		}
	}
	of("", f.unreadable, f.unexamined)
	for _, e := range f.environments {
		of(e.ref.String(), e.damaged, e.unexamined)
		if e.lost != nil {
			all = append(all, Finding{Code: campaignLost, Severity: Problem, Environment: e.ref.String(), Params: Params{Text: model.Prose(e.lost.What())}})
		}
	}
	return all
}

// contradictions finds targets that were written without Pulley, and marks that only such a target can have raised.
func contradictions(f *facts) (all []Finding) {
	for _, e := range f.environments {
		count := 0
		for _, c := range e.differs {
			if c.Code == fleet.MarkAbove {
				if count++; count > oneByOne {
					continue
				}
			}
			all = append(all, Finding{Code: Code(c.Code), Severity: Problem, Environment: e.ref.String(), Node: c.Node, Params: Params{Differs: &c}})
		}
		if more := count - oneByOne; more > 0 {
			all = append(all, Finding{Code: moreMarks, Severity: Problem, Environment: e.ref.String(), Params: Params{Count: int64(more)}})
		}
	}
	return all
}

// statements finds statements that nobody renewed: three quarters of their time are over.
func statements(f *facts) (all []Finding) {
	for _, e := range f.environments {
		if left := e.ends.Sub(f.now); left > 0 && left < e.ends.Sub(e.stated)/4 {
			all = append(all, Finding{Code: statementEnds, Severity: Warning, Environment: e.ref.String(), Params: Params{Ends: e.ends}})
		}
	}
	return all
}

// signatures finds nodes that check no signatures although the environment requires it or others check them, and
// different lists of signers.
func signatures(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env, required := e.ref.String(), e.spec != nil && (e.spec.Signatures == model.SignaturesRequired || e.spec.Statement != 0)
		if n := len(e.unchecked); n > 0 && (required || len(e.signers) > 0) {
			found := Finding{Code: signaturesUnchecked, Severity: Warning, Environment: env, Params: Params{Nodes: e.unchecked[:min(n, someOf)], Count: int64(n)}}
			if required {
				found.Code, found.Severity = signaturesRequired, Problem
			}
			all = append(all, found)
		}
		if len(e.signers) < 2 {
			continue
		}
		most := slices.MaxFunc(slices.Sorted(maps.Keys(e.signers)), func(a, b string) int { return len(e.signers[a]) - len(e.signers[b]) })
		for signers, nodes := range sorted(e.signers) {
			if n := len(nodes); signers != most {
				all = append(all, Finding{Code: signersDiffer, Severity: Warning, Environment: env, Params: Params{
					Nodes: nodes[:min(n, someOf)], Count: int64(n), Have: []string{signers}, Want: []string{most},
				}})
			}
			if len(all) >= oneByOne {
				break
			}
		}
	}
	return all
}

// nodes finds nodes that fail and nodes that are silent, one finding for each cause, and nodes whose clocks are ahead, that another Puppet changes
// or that cron does not start.
func nodes(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env, hosts := e.ref.String(), int64(len(e.hosts))
		for _, t := range fleet.Troubles(e.nodes) {
			found := Finding{Code: nodesFail, Severity: Problem, Environment: env, Params: Params{
				Version: t.Release, Count: int64(t.Count), Count2: hosts, Nodes: t.Nodes[:min(len(t.Nodes), someOf)], Text: model.Prose(t.Text),
			}}
			if t.Silent {
				found.Code, found.Severity = nodesSilent, Warning
			}
			if t.Cause != string(model.ReasonLockedOut) { // below, with those that never reported
				all = append(all, found)
			}
		}
		if n := len(e.lockedOut); n > 0 {
			all = append(all, Finding{Code: nodesLockedOut, Severity: Problem, Environment: env, Params: Params{Nodes: e.lockedOut[:min(n, someOf)], Count: int64(n)}})
		}
		lost := Finding{Code: nodesUnlisted, Severity: Warning, Environment: env}
		for _, n := range e.nodes {
			if p := &lost.Params; f.access.On && n.State == model.Unregistered && n.Reason == model.ReasonUnregistered && n.LastSeen != nil && f.now.Sub(*n.LastSeen) < stillReports {
				if p.Count++; p.Count <= someOf {
					p.Nodes = append(p.Nodes, n.Node)
				}
			}
		}
		if lost.Params.Count > 0 {
			all = append(all, lost)
		}
		if n := len(e.unknown); n > 0 {
			all = append(all, Finding{Code: unknownLockedOut, Severity: Warning, Environment: env, Params: Params{Nodes: e.unknown[:min(n, someOf)], Count: int64(n)}})
		}
		ahead, rivals := Finding{Code: clocksAhead, Params: Params{Count2: hosts}}, Finding{Code: otherPuppet, Params: Params{Count2: hosts}}
		unscheduled := map[string]*Finding{}
		for _, n := range e.nodes {
			if p := &rivals.Params; n.Rivals != "" {
				if p.Count++; p.Count <= someOf {
					p.Nodes = append(p.Nodes, n.Node+" ("+n.Rivals+")")
				}
			}
			if why, remedy := clip.Parts(string(n.Unscheduled)); why != "" {
				found := unscheduled[remedy] // the text may have a date
				if found == nil {
					found = &Finding{Code: notScheduled, Params: Params{Count2: hosts, Text: model.Prose(why), Hint: model.Prose(remedy)}}
					unscheduled[remedy] = found
				}
				if found.Params.Count++; found.Params.Count <= someOf {
					found.Params.Nodes = append(found.Params.Nodes, n.Node)
				}
			}
			if p := &ahead.Params; n.View.ClockAhead > 0 && n.State != model.FailedState && n.State != model.Stuck && n.State != model.Silent {
				if p.Count++; p.Count == 1 {
					p.Text = model.Prose(n.Why(f.now))
				}
				if p.Count <= someOf {
					p.Nodes = append(p.Nodes, n.Node)
				}
			}
		}
		findings := []Finding{ahead, rivals}
		for _, why := range slices.Sorted(maps.Keys(unscheduled)) {
			findings = append(findings, *unscheduled[why])
		}
		for _, found := range findings {
			if found.Severity, found.Environment = Warning, env; found.Params.Count > 0 {
				all = append(all, found)
			}
		}
	}
	return all
}

func floods(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env := e.ref.String()
		for node, flood := range sorted(e.floods) {
			found := Finding{Code: flooded, Severity: Warning, Environment: env, Node: node, Params: Params{Bytes: flood.Bytes, Count: flood.Writes, Count2: flood.Calls, Count3: flood.Shown}}
			if f.now.Sub(flood.Last) < floodsOn {
				found.Code, found.Severity = Floods, Problem
			}
			all = append(all, found)
		}
		for node, keys := range sorted(e.reported) {
			if keys > keysOfOneNode {
				all = append(all, Finding{Code: manyKeys, Severity: Problem, Environment: env, Node: node, Params: Params{Count: keys}})
			}
		}
	}
	return all
}

func duplicates(f *facts) (all []Finding) {
	for _, e := range f.environments {
		for node, i := range sorted(e.identities) {
			if c := i.Duplicate; i.Live() && c != nil {
				all = append(all, Finding{Code: duplicate, Severity: Problem, Environment: e.ref.String(), Node: node, Params: Params{
					Machine: c.Machine, Hostname: c.Hostname, From: c.From, Count: int64(c.Times), Seconds: int64(f.now.Sub(c.At) / time.Second),
				}})
			}
		}
	}
	return all
}

func firstBoots(f *facts) (all []Finding) {
	for _, e := range f.environments {
		if by := e.paused; by != nil {
			all = append(all, Finding{Code: provisioningPaused, Severity: Warning, Environment: e.ref.String(), Params: Params{
				By: by.By, Seconds: int64(f.now.Sub(by.At) / time.Second), Text: by.Why,
			}})
		}
		for machine, b := range sorted(e.boots) {
			p := Params{Machine: machine, Step: b.Step, Seconds: int64(f.now.Sub(b.Heard) / time.Second), Text: b.Error}
			switch {
			case b.Stands(f.now):
				all = append(all, Finding{Code: firstBootStalled, Severity: Problem, Environment: e.ref.String(), Node: b.Node, Params: p})
			case b.Finished.IsZero() && b.State == access.BootFailed:
				all = append(all, Finding{Code: firstBootFails, Severity: Warning, Environment: e.ref.String(), Node: b.Node, Params: p})
			}
		}
	}
	return all
}

// turns names the machines that keep others from being provisioned into Puppet servers.
func turns(f *facts) (all []Finding) {
	for _, e := range f.environments {
		var waiting, holders []access.FirstBoot
		for _, b := range sorted(e.boots) {
			switch {
			case b.Waits(f.now):
				waiting = append(waiting, b)
			case b.HasTurn(f.now):
				holders = append(holders, b)
			}
		}
		slices.SortStableFunc(waiting, func(a, b access.FirstBoot) int { return a.Asked.Compare(b.Asked) })
		slices.SortStableFunc(holders, func(a, b access.FirstBoot) int { return a.Turn.Compare(b.Turn) })
		if len(waiting) == 0 || e.paused != nil || f.now.Sub(waiting[0].Asked) < turnsWait {
			continue
		}
		about := func(code Code, b access.FirstBoot, since time.Time, others []access.FirstBoot) {
			found := Finding{Code: code, Severity: Warning, Environment: e.ref.String(), Node: b.Node, Params: Params{
				Machine: b.Machine, Step: b.Step, Seconds: int64(f.now.Sub(since) / time.Second), Ends: b.Until, Count: int64(len(others)),
			}}
			for _, other := range others[:min(len(others), someOf)] {
				found.Params.Nodes = append(found.Params.Nodes, other.Node)
			}
			all = append(all, found)
		}
		for _, b := range holders[:min(len(holders), someOf)] {
			about(turnHeld, b, b.Turn, waiting)
		}
		if first := waiting[0]; len(waiting) > 1 && f.now.Sub(first.Again) > turnsAsked {
			first.Until = first.LosesPosition()
			about(turnNotAsked, first, first.Again, waiting[1:])
		}
	}
	return all
}

// machineIDs finds nodes with one machine id: copies of one image, whose first boots and removals are mistaken for each other.
func machineIDs(f *facts) (all []Finding) {
	type holder struct{ env, node string }
	holders := map[string][]holder{}
	for _, e := range f.environments {
		for node, h := range sorted(e.hosts) {
			if h.MachineID != "" {
				holders[h.MachineID] = append(holders[h.MachineID], holder{e.ref.String(), node})
			}
		}
	}
	for machine, some := range sorted(holders) {
		if len(some) < 2 {
			continue
		}
		if len(all) == oneByOne {
			break
		}
		last := some[len(some)-1]
		found := Finding{Code: sameMachineID, Severity: Warning, Environment: last.env, Node: last.node, Params: Params{Machine: machine, Count: int64(len(some))}}
		for _, h := range some[:min(len(some), someOf)] {
			found.Params.Nodes = append(found.Params.Nodes, h.node+" of "+h.env)
		}
		all = append(all, found)
	}
	return all
}

// claims finds what machines said of themselves and what belongs to other nodes, addresses of several nodes, and hostnames that differ from
// the names.
func claims(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env, refused := e.ref.String(), 0
		differ := Finding{Code: hostnamesDiffer, Severity: Fine, Environment: env}
		at := map[string]model.Host{}
		for node, h := range sorted(e.hosts) {
			if h.OtherName() {
				if differ.Params.Count++; len(differ.Params.Nodes) < someOf {
					differ.Params.Nodes = append(differ.Params.Nodes, node+" ("+h.Hostname+")")
				}
			}
			if e.spec != nil && e.spec.Driver() == environments.DriverLocal {
				continue // its machines have the addresses of their host
			}
			for _, c := range h.Refused {
				if refused++; refused <= oneByOne {
					all = append(all, Finding{Code: claimRefused, Severity: Warning, Environment: env, Node: node, Params: Params{Subject: c.Value, Nodes: []string{c.Of}}})
				}
			}
			was, taken := at[h.Checked]
			switch {
			case h.Checked == "":
				continue
			case taken:
				last, former := h, was
				if was.At.After(h.At) {
					last, former = was, h
				}
				if refused++; refused <= oneByOne {
					all = append(all, Finding{Code: addressMoved, Severity: Warning, Environment: env, Node: former.Node, Params: Params{Subject: h.Checked, Nodes: []string{last.Node}}})
				}
				at[h.Checked] = last
			default:
				at[h.Checked] = h
			}
		}
		for address, nodes := range sorted(e.shared()) {
			if refused++; refused <= oneByOne {
				all = append(all, Finding{Code: addressShared, Severity: Warning, Environment: env, Params: Params{Subject: address, Count: int64(len(nodes)), Nodes: nodes[:min(len(nodes), someOf)]}})
			}
		}
		if differ.Params.Count > 0 {
			all = append(all, differ)
		}
	}
	return all
}

// shared returns the addresses that no node has in pulley::hosts, because several list them, with these nodes.
func (e environment) shared() map[string][]string {
	if e.spec == nil {
		return nil
	}
	view := hosts.View{AddressFact: e.spec.Hosts.AddressFact}
	for _, role := range e.spec.Roles {
		view.All = view.All || slices.Contains(role.Sees, environments.AllRoles)
		view.Roles = append(view.Roles, role.Sees...)
	}
	for _, text := range e.spec.Hosts.Networks {
		if network, err := netip.ParsePrefix(text); err == nil {
			view.Networks = append(view.Networks, network)
		}
	}
	nodes, _ := hosts.Parse(e.hosts, e.exports)
	return view.Shared(nodes)
}

// gone reports whether a node is on no list: not a host, not called for, without an identity.
func (e environment) gone(node string) bool {
	_, listed := e.hosts[node]
	i := e.identities[node]
	return !listed && !e.wanted[node] && !i.Live()
}

// leftovers finds what nodes and users that are gone left behind.
func leftovers(f *facts) (all []Finding) {
	for _, e := range f.environments {
		env := e.ref.String()
		switch {
		case e.destroying:
			all = append(all, Finding{Code: destroyUnfinished, Severity: Warning, Environment: env})
		case e.spec == nil:
			all = append(all, Finding{Code: environmentMissing, Severity: Warning, Environment: env})
		}
		for node, i := range sorted(e.identities) {
			if _, listed := e.hosts[node]; i.Live() && !listed {
				all = append(all, Finding{Code: identityUnlisted, Severity: Warning, Environment: env, Node: node})
			}
		}
		var more []string
		count := 0
		for node, keys := range sorted(e.reported) {
			if !e.gone(node) {
				continue
			}
			if count++; count > oneByOne {
				more = append(more, node)
				continue
			}
			found := Finding{Code: keysLeft, Severity: Warning, Environment: env, Node: node, Params: Params{Count: keys}}
			if e.identities[node].Removed != nil {
				found.Code = keysLeftRemoved
			}
			all = append(all, found)
		}
		if len(more) > 0 {
			all = append(all, Finding{Code: moreKeysLeft, Severity: Warning, Environment: env, Params: Params{Count: int64(len(more)), Nodes: []string{more[0], more[len(more)-1]}}})
		}
		for node := range sorted(e.precreated) {
			if i := e.identities[node]; e.spec != nil && !e.wanted[node] || i.Live() {
				all = append(all, Finding{Code: precreatedUnused, Severity: Warning, Environment: env, Node: node})
			}
		}
	}
	if !f.checked() || f.operatorsErr != nil {
		return all
	}
	users, roles := f.strays()
	for i, n := range users {
		if i == oneByOne {
			all = append(all, Finding{Code: moreStrays, Severity: Problem, Params: Params{Count: int64(len(users) - oneByOne)}})
			break
		}
		found := Finding{Code: Stray, Severity: Problem, Environment: n.Environment, Params: Params{User: n.String()}}
		if n.Kind == pki.KindNode {
			found.Node = n.Subject
		}
		if key := f.unreadOwner(n); key != "" {
			found.Code, found.Severity, found.Params.Key = ownerUnreadable, Warning, key
		}
		all = append(all, found)
	}
	if len(roles) > 0 {
		all = append(all, Finding{Code: strayRoles, Severity: Warning, Params: Params{Count: int64(len(roles))}})
	}
	return all
}

// machineRecords finds machines that no command will delete. During an apply they may be its work.
func machineRecords(f *facts) (all []Finding) {
	for _, e := range f.environments {
		if e.applying != nil {
			continue
		}
		env, count, more := e.ref.String(), 0, int64(0)
		for node, r := range sorted(e.records) {
			if !e.gone(node) {
				continue
			}
			if count++; count > oneByOne {
				more++
				continue
			}
			all = append(all, Finding{Code: machineUnwanted, Severity: Warning, Environment: env, Node: node, Params: Params{Machine: r.Name}})
		}
		if more > 0 {
			all = append(all, Finding{Code: moreMachines, Severity: Warning, Environment: env, Params: Params{Count: more}})
		}
	}
	return all
}

func applying(f *facts) (all []Finding) {
	for _, e := range f.environments {
		if e.applying == nil {
			continue
		}
		if age := f.now.Sub(e.applying.Since); age > applyTakes {
			all = append(all, Finding{Code: applyHangs, Severity: Warning, Environment: e.ref.String(), Params: Params{By: clip.Text(e.applying.By, 64), Seconds: int64(age / time.Second)}})
		}
	}
	for _, l := range f.locks[:min(len(f.locks), oneByOne)] {
		if age := f.now.Sub(l.Since); age > applyTakes {
			all = append(all, Finding{Code: contentHangs, Severity: Warning, Params: Params{Kind: string(l.Kind), By: clip.Text(l.By, 64), Seconds: int64(age / time.Second)}})
		}
	}
	return all
}

// previews finds each preview that blocks others for long: one finding with the first of its nodes.
func previews(f *facts) (all []Finding) {
	for _, e := range f.environments {
		byOrder := map[string]*Finding{}
		for node, o := range sorted(e.previews) {
			age := f.now.Sub(o.At)
			if age <= previewTakes {
				continue
			}
			found := byOrder[o.ID]
			if found == nil {
				found = &Finding{Code: previewBlocks, Severity: Warning, Environment: e.ref.String(), Params: Params{By: clip.Text(o.By, 64), Seconds: int64(age / time.Second)}}
				byOrder[o.ID] = found
			}
			if found.Params.Count++; found.Params.Count <= someOf {
				found.Params.Nodes = append(found.Params.Nodes, node)
			}
		}
		for _, found := range sorted(byOrder) {
			if len(all) == oneByOne {
				return all
			}
			all = append(all, *found)
		}
	}
	return all
}

func notices(f *facts) (all []Finding) {
	for _, n := range f.notices {
		found := Finding{Code: noticeUnsure, Severity: Warning, Environment: n.Environment, Node: n.Node, Params: Params{Kind: string(n.Kind)}}
		switch {
		case n.State == notify.NoticeFailed:
			found.Code, found.Params.Text = noticeFailed, n.Error
		case n.State == notify.NoticeUnsure:
		case n.State == notify.NoticeSending && f.now.Sub(n.At) > sendingTakes:
			found.Code = noticeInterrupted
		default:
			continue
		}
		all = append(all, found)
	}
	return all
}

const (
	shownCleanups = 5
	kindPuppetDB  = string(access.CleanPuppetDB)
	kindUnread    = string(access.CleanUnread)
)

// cleanups names what Puppet servers still have of removed nodes, and what they do not have of new ones: one finding for each server of an
// environment.
func cleanups(f *facts) (all []Finding) {
	at := map[[3]string]int{}
	for _, c := range f.cleanups {
		for _, step := range c.Steps {
			key := [3]string{c.Environment.String(), string(step.Kind), step.URL}
			i, known := at[key]
			if !known {
				i = len(all)
				at[key] = i
				all = append(all, Finding{Code: cleanupPending, Severity: Warning, Environment: key[0], Params: Params{
					Kind: key[1], Endpoint: step.URL, Seconds: int64(f.now.Sub(c.Removed).Seconds()), // of the oldest
				}})
			}
			p := &all[i].Params
			if p.Count++; p.Count <= shownCleanups {
				p.Nodes = append(p.Nodes, c.Node)
			}
			if step.Problem != "" {
				p.Text = step.Problem
			}
		}
	}
	for _, e := range f.environments {
		if found, some := unsigned(e); some {
			all = append(all, found)
		}
	}
	return all
}

// unsigned names the machines of an environment whose certificates the CA did not sign before they boot.
func unsigned(e environment) (found Finding, some bool) {
	found = Finding{Code: presignPending, Severity: Warning, Environment: e.ref.String()}
	if e.spec != nil {
		found.Params.Endpoint = e.spec.Puppet.CA.URL
	}
	for node, made := range sorted(e.presigned) {
		if made.Certificate != "" || made.Problem == "" {
			continue
		}
		if found.Params.Count++; found.Params.Count <= shownCleanups {
			found.Params.Nodes = append(found.Params.Nodes, node)
		}
		found.Params.Text = made.Problem
	}
	return found, found.Params.Count > 0
}

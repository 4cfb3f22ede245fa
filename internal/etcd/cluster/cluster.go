// Package cluster is etcd itself: its members, alarms, room and copies, and the mark of this installation.
//
// It must never read a value of a subject, except the times in the newest reports, which show serve that its clock is wrong.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-version"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki/connect"
)

// Cluster is etcd itself, and the ID of this installation.
type Cluster struct{ db *etcd.DB }

// In returns the cluster of a connection.
func In(db *etcd.DB) *Cluster { return &Cluster{db} }

// MemberState is the state that one etcd member reports.
type MemberState struct {
	Endpoint, Version   string
	Stored, Used, Quota int64 // bytes; quota 0: etcd does not report it
	Alarms              []string

	Silent error // why the member does not answer; the other fields are then empty

	leader   bool
	applied  uint64 // the last entry of the log that its data has
	revision int64
}

// Member reads the state of the member at an endpoint. Its error is a *connect.Failure where the member does not answer.
func (s *Cluster) Member(ctx context.Context, endpoint string) (MemberState, error) {
	m, err := s.member(ctx, endpoint)
	var failed *connect.Failure
	if err = s.db.Explain(err); errors.As(err, &failed) {
		return m, failed
	}
	return m, err
}

func (s *Cluster) member(ctx context.Context, endpoint string) (MemberState, error) {
	ctx, cancel := context.WithTimeout(etcd.At(ctx, endpoint), s.db.Timeout)
	defer cancel()
	st, err := s.db.Client.Status(ctx, endpoint)
	if err != nil {
		return MemberState{Endpoint: endpoint}, err
	}
	return MemberState{
		Endpoint: endpoint, Version: st.Version, Stored: st.DbSize, Used: st.DbSizeInUse, Quota: st.DbSizeQuota,
		Alarms: st.Errors, leader: st.Leader == st.Header.MemberId, applied: st.RaftAppliedIndex, revision: st.Header.Revision,
	}, nil
}

// repaired is the first release of each line of etcd in which users cannot read or write past their roles
// (CVE-2026-33413, CVE-2026-44283, GHSA-xg4h-6gfc-h4m8). Other lines have no such release.
var repaired = map[string]string{"3.5": "3.5.33", "3.6": "3.6.14", "3.7": "3.7.1"}

// Outdated reports whether a version of etcd lacks repairs, and which version has them.
func Outdated(v string) (need string, yes bool) {
	is, err := version.NewVersion(v)
	if err != nil {
		return "3.7.1", true
	}
	segments := is.Segments()
	need, known := repaired[fmt.Sprintf("%d.%d", segments[0], segments[1])]
	switch {
	case known:
		return need, is.Core().LessThan(version.Must(version.NewVersion(need)))
	case is.Core().LessThan(version.Must(version.NewVersion("3.5.0"))):
		return "3.5.33", true
	}
	return "", false // newer than all of them
}

// Health reads the state of each endpoint. A silent member is no error as long as the others confirm a read, which takes a quorum.
func (s *Cluster) Health(ctx context.Context) ([]MemberState, error) {
	all := make([]MemberState, len(s.endpoints()))
	var quorum error
	var reading sync.WaitGroup
	reading.Go(func() { quorum = s.Ping(ctx) })
	for i, endpoint := range s.endpoints() {
		reading.Go(func() {
			var err error
			if all[i], err = s.Member(ctx, endpoint); err != nil {
				all[i].Silent = err
			}
		})
	}
	reading.Wait()
	silent := slices.ContainsFunc(all, func(m MemberState) bool { return m.Silent != nil })
	if silent && errors.Is(quorum, model.ErrUnreachable) {
		return all, quorum
	}
	return all, nil
}

func (s *Cluster) endpoints() []string {
	if endpoints := s.db.Client.Endpoints(); len(endpoints) > 0 {
		return endpoints
	}
	return []string{s.db.Endpoints} // in etcd's own process
}

func (s *Cluster) membersAt(ctx context.Context, endpoints []string) (all []MemberState, err error) {
	for _, endpoint := range endpoints {
		m, err := s.member(ctx, endpoint)
		if err != nil {
			return all, s.db.Explain(err)
		}
		all = append(all, m)
	}
	return all, nil
}

// Ping reads one key, which need not exist.
func (s *Cluster) Ping(ctx context.Context) error {
	_, err := s.db.Get(ctx, s.db.Keys.Environments(), clientv3.WithCountOnly())
	return err
}

// Of the newest reports of nodes, NodesTime reads at most newestReports, and needs leastReports for a median that one
// wrong clock does not decide.
const newestReports, leastReports = 25, 3

// NodesTime returns the median of the times in the newest reports of nodes, each by the clock of its node. It is zero
// with too few reports.
func (s *Cluster) NodesTime(ctx context.Context) (time.Time, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.AllStatuses(), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(newestReports))
	var times []time.Time
	var points []etcd.Point
	for i := 0; err == nil && i < len(resp.Kvs); i++ {
		points = append(points, etcd.Point{Key: string(resp.Kvs[i].Key), Read: func(kv *etcd.KV) error {
			var report struct {
				SeenAt time.Time `json:"seen_at"`
			}
			if json.Unmarshal(kv.Value, &report) == nil && !report.SeenAt.IsZero() { // what a node wrote must not stop serve
				times = append(times, report.SeenAt)
			}
			return nil
		}})
	}
	if len(points) > 0 {
		_, err = s.db.Read(ctx, map[string]int64{}, points...)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot read the newest reports of nodes: %w", err)
	}
	if len(times) < leastReports {
		return time.Time{}, nil
	}
	slices.SortFunc(times, time.Time.Compare)
	return times[len(times)/2], nil
}

// snapshotWithin bounds the transfer of a snapshot of at most 8 GiB.
const snapshotWithin = 30 * time.Minute

// Snapshot writes etcd's whole database at one revision, followed by its checksum. It needs an admin. It reads the member
// with the newest data, because each member would answer, however far behind it is. Without a quorum, that member may
// lack the newest writes: old is then true. fits may refuse the size of the database before the first byte.
func (s *Cluster) Snapshot(ctx context.Context, fits func(bytes int64) error, w io.Writer) (old bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	fail := func(err error) (bool, error) { return false, fmt.Errorf("cannot read a snapshot of etcd: %w", err) }
	confirmed, err := s.db.Get(ctx, s.db.Keys.Environments(), clientv3.WithCountOnly()) // by a quorum, with a shorter deadline
	if err != nil && !errors.Is(err, model.ErrUnreachable) {
		return fail(err)
	}
	members, _ := s.Health(ctx)
	newest := slices.MaxFunc(members, func(a, b MemberState) int { return cmp.Compare(a.applied, b.applied) })
	switch {
	case newest.Silent != nil && err != nil:
		return fail(err)
	case newest.Silent != nil:
		return fail(newest.Silent)
	case err == nil && newest.revision < confirmed.Header.Revision:
		return fail(fmt.Errorf("%s lacks its newest writes, and no other member answers\nrun the command again, with all members in --endpoints", newest.Endpoint))
	}
	if err := fits(newest.Stored); err != nil {
		return fail(err)
	}
	if readErr := s.snapshot(ctx, newest.Endpoint, w); readErr != nil {
		return fail(s.db.Explain(readErr))
	}
	return err != nil, nil
}

// snapshot reads one member. The client's own Snapshot would read any.
func (s *Cluster) snapshot(ctx context.Context, endpoint string, w io.Writer) error {
	from := s.db.Client.Maintenance
	if len(s.db.Client.Endpoints()) > 0 { // none in etcd's own process
		conn, err := s.db.Client.Dial(endpoint)
		if err != nil {
			return err
		}
		defer conn.Close()
		from = clientv3.NewMaintenanceFromMaintenanceClient(clientv3.RetryMaintenanceClient(s.db.Client, conn), s.db.Client)
	}
	r, err := from.Snapshot(ctx)
	if err == nil {
		_, err = io.Copy(w, r)
		err = errors.Join(err, r.Close())
	}
	return err
}

// Alarm is an alarm of etcd.
type Alarm string

// The alarms of etcd.
const (
	AlarmNoSpace Alarm = "no_space"
	AlarmCorrupt Alarm = "corrupt"
)

// Alarms lists the alarms that etcd has raised.
func (s *Cluster) Alarms(ctx context.Context) (alarms []Alarm, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	resp, err := s.db.Client.AlarmList(ctx)
	if err != nil {
		return nil, s.db.Explain(err)
	}
	for _, a := range resp.Alarms {
		switch a.Alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			alarms = append(alarms, AlarmNoSpace)
		case etcdserverpb.AlarmType_CORRUPT:
			alarms = append(alarms, AlarmCorrupt)
		}
	}
	return alarms, nil
}

// Bounds of etcd's maintenance, which may rewrite gigabytes.
const (
	compactWithin    = 5 * time.Minute
	defragmentWithin = 5 * time.Minute // of one member
)

// Compact makes etcd drop all overwritten and deleted values, and reuse their space.
func (s *Cluster) Compact(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compactWithin)
	defer cancel()
	rev, err := s.revision(ctx)
	// The work of the first is counted by the second: see roomy.
	for _, before := range []int64{1, 0} {
		if err == nil {
			_, err = s.compact(ctx, rev-before)
		}
	}
	return compacted(s.db.Explain(err))
}

func (s *Cluster) revision(ctx context.Context) (int64, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Pruning(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// compact drops what is older than a revision, and reports whether it did: another client may have. Only an administrator of etcd may:
// `pulley serve` does it regularly.
func (s *Cluster) compact(ctx context.Context, rev int64) (worked bool, err error) {
	if rev <= 0 {
		return false, nil
	}
	_, err = s.db.Client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrPermissionDenied) {
		return false, nil
	}
	return err == nil, err
}

func compacted(err error) error {
	if err != nil {
		return fmt.Errorf("cannot compact etcd: %w\nremoved values take up room until then; `pulley serve` compacts regularly", err)
	}
	return nil
}

// MakeRoom compacts etcd, defragments its members one after the other, the leader last, and clears the alarm about
// missing space. It returns the freed bytes. A member answers no request during its defragmentation. It needs an
// admin.
func (s *Cluster) MakeRoom(ctx context.Context) (freed int64, err error) {
	if err := s.Compact(ctx); err != nil {
		return 0, err
	}
	if freed, err = s.defragment(ctx); err != nil {
		return freed, err
	}
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	// Without a member, this lists every alarm. An alarm about damaged data must stay.
	alarms, err := s.db.Client.AlarmList(within)
	for i := 0; err == nil && i < len(alarms.Alarms); i++ {
		if a := alarms.Alarms[i]; a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			_, err = s.db.Client.AlarmDisarm(within, (*clientv3.AlarmMember)(a))
		}
	}
	return freed, etcd.Wrap(s.db.Explain(err), "cannot make etcd accept writes again")
}

// defragment rewrites the file of each member without its free pages, the leader's last. It returns the freed bytes.
func (s *Cluster) defragment(ctx context.Context) (freed int64, err error) {
	members, err := s.members(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot make room in etcd: %w", err)
	}
	for _, before := range members {
		one, cancel := context.WithTimeout(ctx, defragmentWithin)
		err := s.db.Defragment(one, before.Endpoint)
		cancel()
		var after MemberState
		if err == nil {
			after, err = s.member(ctx, before.Endpoint)
		}
		if err != nil {
			return freed, fmt.Errorf("cannot make room in etcd at %s: %w", before.Endpoint, s.db.Explain(err))
		}
		freed += before.Stored - after.Stored
	}
	return freed, nil
}

// The shares of the quota below which an etcd that was full may be written again: by itself, and when an operator runs the command
// that then deletes values.
const (
	RoomyPercent = 80
	TightPercent = 97
)

// TightError reports that the values of a full etcd need most of its quota.
type TightError struct {
	Endpoint string
	Percent  int64
}

func (e *TightError) Error() string {
	return fmt.Sprintf("cannot make room in etcd at %s: its values need more than %d%% of the quota", e.Endpoint, e.Percent)
}

// Hint returns the remedy.
func (e *TightError) Hint() string {
	if e.Percent < TightPercent {
		return "run `pulley doctor --fix`, then `pulley releases prune`"
	}
	return "raise the quota: `pulley serve --quota`, or --quota-backend-bytes of another etcd"
}

// Heal makes room if etcd is full, and reports whether it accepts writes again. A *TightError means that its values need percent of the
// quota: somebody must delete some or raise it. It needs an admin.
func (s *Cluster) Heal(ctx context.Context, percent int64) (freed int64, healed bool, err error) {
	full := func(m MemberState) bool {
		return slices.ContainsFunc(m.Alarms, func(alarm string) bool { return strings.Contains(alarm, "NOSPACE") })
	}
	members, err := s.Health(ctx)
	if err != nil || !slices.ContainsFunc(members, full) {
		return 0, false, err
	}
	if err := s.roomy(ctx, percent); err != nil {
		return 0, false, err
	}
	freed, err = s.MakeRoom(ctx)
	return freed, err == nil, err
}

// The looks at a compacted etcd, and the time between them.
const (
	roomyLooks = 15
	roomyPause = 200 * time.Millisecond
)

// roomy compacts until the values of each member need less than percent of its quota. It returns a *TightError if they need more.
//
// bbolt counts the pages that a transaction freed at the end of a later one that began when nobody read the state before, and a full
// etcd gets no other write. So the last revisions are compacted one by one: the first compaction does the work. If another client has
// compacted them all, only a defragmentation makes the figure right.
func (s *Cluster) roomy(ctx context.Context, percent int64) error {
	within, cancel := context.WithTimeout(ctx, compactWithin)
	defer cancel()
	rev, err := s.revision(within)
	if err != nil {
		return compacted(s.db.Explain(err))
	}
	works := 0
	for left := int64(roomyLooks); ; left-- {
		worked, err := s.compact(within, rev-left)
		if err != nil {
			return compacted(s.db.Explain(err))
		}
		if worked {
			works++
		}
		tight, err := s.tight(ctx, percent)
		if err != nil || tight == nil {
			return err
		}
		if left > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(roomyPause):
			}
			continue
		}
		if works > 1 || !s.db.FirstAt(rev) { // once: members answer nothing meanwhile
			return tight
		}
		if _, err := s.defragment(ctx); err != nil {
			return err
		}
		if tight, err = s.tight(ctx, percent); err != nil || tight == nil {
			return err
		}
		return tight
	}
}

// tight returns the first member whose values need percent of its quota or more; nil for none.
func (s *Cluster) tight(ctx context.Context, percent int64) (*TightError, error) {
	members, err := s.Health(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(members, func(m MemberState) bool { return m.Quota > 0 && m.Used*100 >= m.Quota*percent })
	if i < 0 {
		return nil, nil
	}
	return &TightError{members[i].Endpoint, percent}, nil
}

// members returns the members of the cluster that a client can reach, the leader last. A single member is the one that
// answers, at any address.
func (s *Cluster) members(ctx context.Context) ([]MemberState, error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	list, err := s.db.Client.MemberList(within)
	if err != nil {
		return nil, s.db.Explain(err)
	}
	endpoints := s.endpoints()[:1]
	if len(list.Members) > 1 {
		endpoints = nil
		for _, m := range list.Members {
			if len(m.ClientURLs) == 0 {
				return nil, errors.New("a member has not started: " + m.Name)
			}
			endpoints = append(endpoints, m.ClientURLs[0])
		}
	}
	members, err := s.membersAt(ctx, endpoints)
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(members, func(a, b MemberState) int {
		return cmp.Or(rank[a.leader]-rank[b.leader], strings.Compare(a.Endpoint, b.Endpoint))
	})
	return members, err
}

// installationBytes is the length of an installation's ID before hex encoding.
const installationBytes = 8

// installation is the value of the key.
type installation struct {
	ID string    `json:"id"`
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// Installation reads the ID that marks this installation's machines at providers: 16 hex digits, or "" if it does not
// exist yet.
func (s *Cluster) Installation(ctx context.Context) (id string, err error) {
	_, err = s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: s.db.Keys.Installation(), Read: func(kv *etcd.KV) error {
		id, err = installationID(kv)
		return err
	}})
	return id, etcd.Wrap(err, "cannot read this installation's id")
}

func installationID(kv *etcd.KV) (string, error) {
	var i installation
	if err := etcd.Into(&i)(kv); err != nil {
		return "", err
	}
	if !IsHex(i.ID, installationBytes) {
		return "", &etcd.UnreadableError{Key: string(kv.Key), Problem: "it is not the id of an installation", Next: "it identifies the machines: restore it from a backup"}
	}
	return i.ID, nil
}

// InstallationID returns the ID and creates it if it is missing. Concurrent callers get the same ID. With etcd
// authentication the creation needs an admin. The setup of users already creates it.
func (s *Cluster) InstallationID(ctx context.Context, by string) (string, error) {
	id, err := s.Installation(ctx)
	if err != nil || id != "" {
		return id, err
	}
	random := make([]byte, installationBytes)
	_, _ = rand.Read(random) // it never fails
	fresh := installation{ID: hex.EncodeToString(random), By: by, At: time.Now().UTC().Truncate(time.Second)}
	_, err = s.db.Replace(ctx, s.db.Keys.Installation(), fresh, 0)
	switch {
	case err == nil:
		return fresh.ID, nil
	case errors.Is(err, etcd.ErrConflict):
		return s.Installation(ctx)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return "", fmt.Errorf("cannot create the ID of this installation: etcd allows only an admin to do this, not %s\n"+
			"nothing was done; `pulley serve` creates it when it starts, and an admin's `pulley doctor --fix` in another etcd", s.db.CallerName)
	}
	return "", fmt.Errorf("cannot write this installation's id: %w", err)
}

// EnsureInstallation creates the ID before the first apply, because an operator may not create it. A damaged ID or a
// full etcd does not stop the rest of the setup: a later apply reports either.
func (s *Cluster) EnsureInstallation(ctx context.Context, by string) error {
	_, err := s.InstallationID(ctx, by)
	if errors.As(err, new(*etcd.UnreadableError)) || errors.Is(err, etcd.ErrFull) {
		return nil
	}
	return err
}

// IsHex reports whether a string is hexadecimal digits for this number of bytes.
func IsHex(s string, size int) bool {
	return len(s) == hex.EncodedLen(size) && strings.Trim(s, "0123456789abcdef") == ""
}

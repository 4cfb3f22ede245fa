package doctor_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/doctor"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/secrets"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

var dev = model.Ref{Environment: "dev"}

const (
	nodeA  = "pulley/node/dev/controller1/00000000000000a1"
	nodeB  = "pulley/node/dev/compute1/00000000000000b1"
	viewer = "pulley/operator/vic/0000000000000001"
)

// joined makes a node that has joined and reported.
func joined(t *testing.T, server *etcdtest.Auth, node, user string) {
	t.Helper()
	st, ctx := server.Admin(), t.Context()
	at := time.Now().UTC()
	for _, err := range []error{
		access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", node, user),
		fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "controller", MachineID: "machine of " + node}),
		access.IdentitiesIn(st).Put(ctx, dev, access.Identity{Node: node, Role: "controller", User: user, Incarnation: user[len(user)-16:], Machine: "machine of " + node, Joined: at}, 0),
		fleet.In(st).Hold(ctx, dev, etcd.Scope{Node: node}, model.Hold{Mode: model.Freeze, Who: "ann", Why: "test"}, 0, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"environments/dev/desired/nodes/" + node, "environments/dev/assigned/" + node, "precreated/dev/" + node, "floods/dev/" + node, "retirements/dev/" + node} {
		if _, err := server.ClientOf(etcdtest.Serve).Put(ctx, "/pulley/v1/"+key, `{"v":1}`); err != nil {
			t.Fatal(err)
		}
	}
	own := server.DB(user)
	if err := control.In(own).Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node}, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil); err != nil {
		t.Fatal(err)
	}
}

// found renders a diagnosis as lines, without what is fine.
func found(t *testing.T, d doctor.Diagnosis) string {
	t.Helper()
	var lines []string
	for _, f := range d {
		if f.Severity != doctor.Fine {
			lines = append(lines, fmt.Sprintf("%s %s %s -> %s", f.Severity, f.Check, f.Sentence(), f.Remedy()))
		}
	}
	return strings.Join(lines, "\n")
}

func examine(t *testing.T, server *etcdtest.Auth, user string, fix bool) doctor.Diagnosis {
	t.Helper()
	d, err := doctor.Examine(t.Context(), server.DB(user), server.Config(user), time.Now(), fix)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func apply(t *testing.T, st *etcd.DB) {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  controller: {cardinality: 2}\n  compute: {cardinality: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.In(st).PutSpec(t.Context(), e, 0); err != nil {
		t.Fatal(err)
	}
}

// Operators ignore a doctor that reports problems of a healthy fleet.
func TestDoctorFindsNothingInAHealthyFleet(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	apply(t, st)
	if err := access.In(st).EnsureEnvironment(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	at := time.Now().UTC()
	if err := access.In(st).EnsureNode(ctx, "dev", "controller1", nodeA); err != nil {
		t.Fatal(err)
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "controller1", Role: "controller", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := access.IdentitiesIn(st).Put(ctx, dev, access.Identity{Node: "controller1", User: nodeA, Joined: at, Issued: at, Until: at.Add(90 * 24 * time.Hour)}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := access.IdentitiesIn(st).Precreate(ctx, dev, "controller2", at); err != nil {
		t.Fatal(err)
	}
	d := examine(t, server, etcdtest.Serve, false)
	// The certificates of the test last an hour, which is soon.
	if lines := found(t, d); d.Worst() != doctor.Fine && strings.Count(lines, "\n")+1 != strings.Count(lines, "warning certificate") {
		t.Errorf("found:\n%s", lines)
	}
	for _, check := range []string{"answers", "version", "quota", "alarms", "tls", "auth", "root", "grants", "operators", "nodes"} {
		ok := false
		for _, f := range d {
			ok = ok || f.Check == check && f.Severity == doctor.Fine
		}
		if !ok {
			t.Errorf("no fine finding of check %s", check)
		}
	}
}

// A gap that doctor does not find stays open. Each finding names its remedy.
func TestDoctorFindsEachGap(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	apply(t, st)
	now := time.Now().UTC()
	for node, user := range map[string]string{"controller1": nodeA, "compute1": nodeB} {
		joined(t, server, node, user)
		i, revision, err := access.IdentitiesIn(st).Get(ctx, dev, node)
		if err != nil {
			t.Fatal(err)
		}
		i.Issued, i.Until = now.Add(-80*24*time.Hour), now.Add(10*24*time.Hour)
		if node == "compute1" {
			i.Until = now.Add(-time.Hour)
		}
		i.Duplicate = &access.Duplicate{Machine: "other", Hostname: "cloned", From: "192.0.2.9", First: now, At: now, Times: 3}
		if err := access.IdentitiesIn(st).Put(ctx, dev, *i, revision); err != nil {
			t.Fatal(err)
		}
	}
	stray := "pulley/node/dev/controller2/00000000000000dd"
	var errs []error
	try := func(_ any, err error) { errs = append(errs, err) }
	try(nil, access.In(st).EnsureNode(ctx, "dev", "controller2", stray))
	try(nil, access.In(st).EnsureNode(ctx, "dev", "strange", "pulley/node/dev/strange/00000000000000cc"))
	try(nil, access.In(st).EnsureOperator(ctx, "pulley/operator/ghost/00000000000000ee", access.RoleOperator))
	try(nil, access.In(st).DropUser(ctx, nodeB)) // half of a removal
	try(raw.RoleRevokePermission(ctx, "pulley/nodes/dev", "/pulley/v1/releases/", "/pulley/v1/releases0"))
	try(raw.RoleGrantPermission(ctx, "pulley/node/dev/controller1", "/pulley/v1/environments/dev/gate", "", 1))
	try(raw.UserGrantRole(ctx, nodeA, "root"))
	try(raw.UserChangePassword(ctx, "root", "geheim")) // takes nothing on a user without password
	try(fleet.In(st).NoteFlood(ctx, dev, fleet.Flood{Node: "controller1", Bytes: 9 << 20, Writes: 900, First: now, Last: now}))
	try(nil, fleet.In(st).Register(ctx, "dev", model.Host{Node: "controller7", Role: "controller"}))
	for n := range 80 {
		try(raw.Put(ctx, fmt.Sprintf("/pulley/v1/runs/dev/gone1/%d", n), "x"))
	}
	try(raw.Put(ctx, "/pulley/v1/firstboots/dev/m9", `{"v":1,"machine":"m9","node":"compute2","step":"puppet","state":"failed","error":"no route","heard":"2020-01-01T00:00:00Z"}`))
	try(raw.Put(ctx, "/pulley/v1/operators/ann", `{"v":1,"name":"ann","as":"admin","user":"pulley/operator/ann/00000000000000ff"}`))
	try(raw.Put(ctx, "/pulley/v1/identities/dev/strange", "not ours"))
	try(raw.Put(ctx, "/pulley/v1/environments/dev/gate", `{"v":1,"epoch":3,"state":"open","rollout":"r3"}`))
	try(raw.Put(ctx, "/pulley/v1/status/old/web1", `{"v":1}`))
	try(raw.Put(ctx, "/pulley/v1/environments/half/provisioning", `{"v":1}`))
	try(raw.Put(ctx, "/pulley/v1/destroyed/half", `{"v":1,"by":"ann","unfinished":true}`))
	for _, err := range errs {
		if err != nil {
			t.Logf("setting up: %v", err)
		}
	}
	lines := found(t, examine(t, server, etcdtest.Serve, false))
	for _, want := range []string{
		"problem flood controller1 floods etcd: 9216 KiB and 900 writes within its worst minute -> remove it and what it wrote: `pulley nodes remove controller1 -e dev --forget`",
		"problem flood gone1 has 80 keys in etcd",
		"warning leftovers gone1 is not on the host list, and left 80 keys -> `pulley nodes remove gone1 -e dev --forget`",
		"problem duplicate a duplicate machine uses the name controller1: machine id other",
		"warning certificate the certificate of controller1 ends on",
		"problem certificate the certificate of compute1 ended on",
		"problem first_boot the first boot of compute2 is stalled at step puppet",
		"problem users compute1 has an identity and no etcd user: etcd refuses it -> a removal was interrupted: `pulley nodes remove compute1 -e dev`",
		"warning users on the host list without an identity: etcd refuses controller7",
		"problem grants role pulley/nodes/dev lacks: read all below /pulley/v1/releases/ -> `pulley doctor --fix`",
		"problem grants role pulley/node/dev/controller1 may do more than it should: write /pulley/v1/environments/dev/gate",
		"problem grants etcd user " + nodeA + " has the roles pulley/node/dev/controller1, pulley/nodes/dev, root, and should have",
		"problem grants role pulley/viewer", // only where it is wrong
		"problem leftovers etcd user " + stray + " has no owner",
		"problem leftovers etcd user pulley/operator/ghost/00000000000000ee has no owner",
		"warning leftovers etcd user pulley/node/dev/strange/00000000000000cc may belong to /pulley/v1/identities/dev/strange, which cannot be read",
		"problem operators operator ann has no etcd user",
		"problem readable cannot read key /pulley/v1/identities/dev/strange",
		"problem readable rollout r3 is in progress, and cannot be read: not found -> end it: `pulley recover -e dev`",
		"warning leftovers environment old does not exist",
		"warning leftovers the destruction of environment half has begun and is not finished: its nodes apply what is left -> run `pulley env destroy half` again",
	} {
		if want == "problem grants role pulley/viewer" {
			if strings.Contains(lines, want) {
				t.Errorf("the role of viewers is reported")
			}
			continue
		}
		if !strings.Contains(lines, want) {
			t.Errorf("doctor does not find: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("found:\n%s", lines)
	}
	// A viewer sees what it may read, and a warning about the rest.
	if err := access.In(st).EnsureOperator(ctx, viewer, access.RoleViewer); err != nil {
		t.Fatal(err)
	}
	if seen := found(t, examine(t, server, viewer, false)); !strings.Contains(seen, "warning users users and roles cannot be read") || !strings.Contains(seen, "controller1 floods") {
		t.Errorf("a viewer finds:\n%s", seen)
	}
	// An unreadable record may name a user: no user is deleted until the record is gone.
	if lines := found(t, examine(t, server, etcdtest.Serve, true)); !strings.Contains(lines, stray) || strings.Contains(lines, "problem grants role") {
		t.Errorf("repaired with an unreadable record:\n%s", lines)
	}
	if _, err := raw.Delete(ctx, "/pulley/v1/identities/dev/strange"); err != nil {
		t.Fatal(err)
	}
	repaired := found(t, examine(t, server, etcdtest.Serve, true))
	for _, gone := range []string{"has no owner", "problem grants"} {
		if strings.Contains(repaired, gone) {
			t.Errorf("after the repair there is still %s:\n%s", gone, repaired)
		}
	}
	if !strings.Contains(repaired, "compute1 has an identity and no etcd user") {
		t.Error("the repair restored the user of a removed node")
	}
}

// Doctor must not report a fleet as fine in which every user may write everything.
func TestDoctorFindsAnOpenFleet(t *testing.T) {
	plain := etcdtest.Start(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{plain.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d, err := doctor.Examine(t.Context(), st, etcd.Config{Endpoints: []string{plain.Endpoint}}, time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	if lines := found(t, d); d.Worst() != doctor.Warning || !strings.Contains(lines, "is in plain text, for this machine alone") || !strings.Contains(lines, "etcd does not check its users") {
		t.Errorf("plain text on loopback:\n%s", lines)
	}
	p := etcdtest.NewPKI(t)
	secure := etcdtest.StartTLS(t, p)
	c := etcd.Config{Endpoints: []string{secure.Endpoint}, CACert: p.CA, Cert: p.ClientCert, Key: p.ClientKey}
	tls, err := etcd.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer tls.Close()
	if d, err = doctor.Examine(t.Context(), tls, c, time.Now(), false); err != nil {
		t.Fatal(err)
	}
	if lines := found(t, d); d.Worst() != doctor.Problem || !strings.Contains(lines, "anybody with a certificate of its CA may write everything") {
		t.Errorf("TLS without users:\n%s", lines)
	}
	plain.Down()
	if _, err := doctor.Examine(t.Context(), st, etcd.Config{Endpoints: []string{plain.Endpoint}}, time.Now(), false); err == nil {
		t.Error("no error from an etcd that does not answer")
	}
}

// Doctor must name what it could not read: a check that is silent for that reason looks like one that passed.
func TestDoctorNamesWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, root, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	apply(t, st)
	if err := access.In(st).EnsureOperator(ctx, viewer, access.RoleViewer); err != nil {
		t.Fatal(err)
	}
	const prefix, role = "/pulley/v1/", "pulley/viewer"
	if lines := found(t, examine(t, server, viewer, false)); strings.Contains(lines, "cannot be examined") {
		t.Fatalf("before:\n%s", lines)
	}
	if _, err := root.RoleRevokePermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix)); err != nil {
		t.Fatal(err)
	}
	from := prefix
	for _, next := range [][2]string{{"disk", "disk\x00"}, {"notices/", "notices0"}, {"publishing/", "publishing0"}, {"\xff", ""}} {
		if _, err := root.RoleGrantPermission(ctx, role, from, prefix+next[0], clientv3.PermissionType(clientv3.PermRead)); err != nil {
			t.Fatal(err)
		}
		from = prefix + next[1]
	}
	d := examine(t, server, viewer, false)
	lines := found(t, d)
	for _, want := range []string{
		"cannot look for unreadable keys of the fleet: ", "cannot list notices: ", "cannot read the state of the disk of etcd: ", "cannot read who publishes or prunes: ",
	} {
		if !strings.Contains(lines, "warning readable cannot be examined: "+want) {
			t.Errorf("it does not contain %q:\n%s", want, lines)
		}
	}
}

// Without client certificates a common name proves nothing.
func TestDoctorFindsAServerWithoutClientCertificates(t *testing.T) {
	t.Parallel()
	p := etcdtest.NewPKI(t)
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = t.TempDir(), "fatal", []string{"/dev/null"}
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: p.ServerCert, KeyFile: p.ServerKey}
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	<-e.Server.ReadyNotify()
	c := etcd.Config{Endpoints: []string{"https://" + e.Clients[0].Addr().String()}, CACert: p.CA, Cert: p.ClientCert, Key: p.ClientKey}
	st, err := etcd.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d, err := doctor.Examine(t.Context(), st, c, time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	if lines := found(t, d); !strings.Contains(lines, "accepts clients without a certificate") {
		t.Errorf("found:\n%s", lines)
	}
}

// An unwanted machine costs money until an operator finds it. An apply that hangs blocks all other applies.
func TestDoctorFindsUnwantedMachines(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	apply(t, st)
	a, err := records.In(st).BeginApply(ctx, dev, "ann")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	for _, node := range []string{"controller1", "controller9", "old1"} {
		if err := a.Put(ctx, machines.Record{Node: node, Name: node + "-vm", Phase: machines.Made}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "old1", Role: "compute"}); err != nil {
		t.Fatal(err)
	}
	if said := found(t, examine(t, server, etcdtest.Serve, false)); strings.Contains(said, "-vm") || strings.Contains(said, "has applied dev") {
		t.Errorf("while an apply is under way:\n%s", said)
	}
	key := "/pulley/v1/environments/dev/applying"
	if _, err := server.ClientOf(etcdtest.Serve).Put(ctx, key, fmt.Sprintf(`{"v":1,"kind":"apply","by":"ann","since":%q}`, time.Now().Add(-2*time.Hour).Format(time.RFC3339)), clientv3.WithIgnoreLease()); err != nil {
		t.Fatal(err)
	}
	if said := found(t, examine(t, server, etcdtest.Serve, false)); !strings.Contains(said, "warning applying ann has applied dev for 2h0m0s") {
		t.Errorf("of an apply that hangs:\n%s", said)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	said := found(t, examine(t, server, etcdtest.Serve, false))
	if !strings.Contains(said, "warning machines pulley made machine controller9-vm for controller9") || strings.Count(said, "-vm") != 1 {
		t.Errorf("of machines that the environment does not need:\n%s", said)
	}
}

// After the end of a statement, no node takes a new target: operators must hear of it before.
func TestDoctorWarnsOfAStatementThatEnds(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	apply(t, server.Admin())
	at := time.Now().UTC().Truncate(time.Second)
	value := fmt.Sprintf(`{"v":1,"environment":"dev","epoch":1,"default":{},"at":%q,"until":%q}`, at.Format(time.RFC3339), at.Add(24*time.Hour).Format(time.RFC3339))
	if _, err := server.ClientOf(etcdtest.Serve).Put(t.Context(), "/pulley/v1/environments/dev/statement", value); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]string{time.Hour: "", 19 * time.Hour: "the statement of the targets ends at", 25 * time.Hour: "the statement of the targets ended at"} {
		d, err := doctor.Examine(t.Context(), server.DB(etcdtest.Serve), server.Config(etcdtest.Serve), at.Add(after), false)
		if err != nil {
			t.Fatal(err)
		}
		if said := found(t, d); (want == "") == strings.Contains(said, "the statement of the targets") || !strings.Contains(said, want) {
			t.Errorf("after %s doctor says %s; want %q", after, said, want)
		}
	}

	// The demand for statements is one for signatures, which nodes without signers refuse.
	joined(t, server, "controller1", nodeA)
	st := model.Status{Node: "controller1", Signatures: &model.Signatures{State: model.SignaturesNotChecked}}
	if err := control.In(server.DB(nodeA)).Report(t.Context(), model.Identity{Node: "controller1", Environment: "dev"}, st, nil, nil); err != nil {
		t.Fatal(err)
	}
	e, err := environments.Parse("dev.yaml", []byte("statement: 24h\nroles:\n  controller: {cardinality: 2}\n"))
	if err == nil {
		var revision int64
		if _, revision, err = specs.In(server.Admin()).Spec(t.Context(), dev); err == nil {
			err = specs.In(server.Admin()).PutSpec(t.Context(), e, revision)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if said := found(t, examine(t, server, etcdtest.Serve, false)); !strings.Contains(said, "the environment requires signatures, and these nodes check none and take nothing new: controller1") {
		t.Errorf("of a node without signers:\n%s", said)
	}
}

// A secret that no node decrypts must be found before a node needs it, and so must a rotation that ended half way.
func TestDoctorFindsLostSecrets(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	apply(t, st)
	if err := access.In(st).EnsureEnvironment(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	recipient := func() targets.Recipient {
		_, public, err := secrets.NewIdentity()
		check(err)
		return targets.Recipient{Recipient: public, At: time.Now().UTC()}
	}
	newest, former, lost := recipient(), recipient(), recipient()
	set := func(key string, r targets.Recipient) {
		t.Helper()
		layer := hieradata.ForRole("controller")
		text, err := secrets.Seal(r.Recipient, secrets.Place{Environment: "dev", Layer: layer, Key: key}, "s3cret")
		check(err)
		f, err := fleet.In(st).State(ctx, dev)
		check(err)
		data, err := targets.In(st).Data(ctx, dev, f.Desires)
		check(err)
		var before []byte
		if digest, has := data.Layers[layer]; has {
			before, err = targets.In(st).Layer(ctx, "dev", digest)
			check(err)
		}
		after, err := hieradata.Set(before, key, "'"+text+"'")
		check(err)
		_, err = targets.In(st).ChangeData(ctx, dev, f.Desires, data, map[hieradata.Layer][]byte{layer: after}, targets.Author{At: time.Now()})
		check(err)
	}
	check(targets.In(st).PutRecipients(ctx, dev, "controller", targets.Recipients{Recipients: []targets.Recipient{newest, former}}, nil))
	for node, removed := range map[string]access.Removal{
		"controller8": {At: time.Now().Add(-time.Hour), Rotate: true}, "controller9": {At: time.Now().Add(time.Hour), Rotate: true}, "controller10": {At: time.Now().Add(time.Hour)},
	} {
		check(access.IdentitiesIn(st).Put(ctx, dev, access.Identity{Node: node, Role: "controller", Removed: &removed}, 0))
	}
	set("a::current", newest)
	set("b::former", former)
	set("c::lost", lost)
	lines := found(t, examine(t, server, etcdtest.Serve, false))
	for _, want := range []string{
		"problem secrets no node can decrypt the secret c::lost of layer roles/controller: its recipient is lost or is another role's, or no host list has its node -> set it again: `pulley secret set c::lost -e dev --role controller`; or remove it: `pulley data unset c::lost -e dev --role controller`",
		"warning secrets 1 secrets of role controller of dev are encrypted to a former recipient: a rotation was interrupted, or earlier data was restored -> `pulley secret rotate -e dev --role controller`",
		"warning secrets the identities of 1 removed nodes decrypt also later secrets of role controller of dev: no rotation followed their removal -> `pulley secret rotate -e dev --role controller`",
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("missing: %s\nfound:\n%s", want, lines)
		}
	}
	if strings.Contains(lines, "a::current") {
		t.Errorf("found:\n%s", lines)
	}
}

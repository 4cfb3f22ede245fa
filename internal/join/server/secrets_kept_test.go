package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/data"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/secrets"
	"pulley/internal/testbed/etcdtest"
)

// errCut is the end of an interrupted command.
var errCut = errors.New("interrupted")

// cut interrupts a command before, or after, its request to etcd or to serve of a number.
type cut struct {
	clientv3.KV
	at, made *int
	after    bool
	end      context.CancelFunc
}

// hit returns true if the command ends here.
func (c cut) hit() bool {
	*c.made++
	if *c.at == 0 || *c.made < *c.at {
		return false
	}
	c.end()
	return true
}

func (c cut) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if c.hit() {
		return nil, errCut
	}
	return c.KV.Get(ctx, key, opts...)
}

func (c cut) Txn(ctx context.Context) clientv3.Txn {
	return cutTxn{c.KV.Txn(context.WithoutCancel(ctx)), c}
}

type cutTxn struct {
	clientv3.Txn
	cut cut
}

func (t cutTxn) If(cmps ...clientv3.Cmp) clientv3.Txn { return cutTxn{t.Txn.If(cmps...), t.cut} }
func (t cutTxn) Then(ops ...clientv3.Op) clientv3.Txn { return cutTxn{t.Txn.Then(ops...), t.cut} }
func (t cutTxn) Else(ops ...clientv3.Op) clientv3.Txn { return cutTxn{t.Txn.Else(ops...), t.cut} }
func (t cutTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.cut.hit() {
		if t.cut.after {
			_, err := t.Txn.Commit()
			return nil, errors.Join(errCut, err)
		}
		return nil, errCut
	}
	return t.Txn.Commit()
}

// keeper sets, rotates and reads secrets, as an administrator.
type keeper struct {
	w        *world
	admin    *join.Client
	node     machine  // of role web
	asked    *limiter // of the serve
	wanted   map[string]string
	made     *int // requests of the last command
	sets     int
	lost     int
	rotated  int
	refused  int
	canceled int
}

// begin returns a store and a sealer that end at a request; 0: at none.
func (k *keeper) begin(at int, after bool) (ctx context.Context, s *etcd.DB, sealer data.Sealer) {
	if k.asked != nil { // each command has one budget
		k.asked.mu.Lock()
		clear(k.asked.buckets)
		k.asked.mu.Unlock()
	}
	ctx, end := context.WithCancel(k.w.t.Context())
	k.w.t.Cleanup(end)
	client := *k.w.etcd.ClientOf(etcdtest.Serve)
	k.made = new(int)
	c := cut{client.KV, &at, k.made, after, end}
	client.KV = c
	return ctx, etcd.Over(&client, nil, k.w.etcd.Endpoint, "", 5*time.Second), data.Sealer{
		Bundle: k.w.ca.Bundle(), Reveal: k.admin.Reveal,
		Sealing: func(ctx context.Context, r join.SealingRequest) (join.SealingAnswer, error) {
			if c.hit() {
				if after {
					_, err := k.admin.Sealing(context.WithoutCancel(ctx), r)
					return join.SealingAnswer{}, errors.Join(errCut, err)
				}
				return join.SealingAnswer{}, errCut
			}
			return k.admin.Sealing(ctx, r)
		},
	}
}

func (k *keeper) author() promotion.Author {
	return promotion.Author{Author: targets.Author{By: "ann", At: time.Now()}}
}

// check reads every acknowledged secret as an administrator and as a node, and the secrets of all generations.
func (k *keeper) check(when string) {
	t := k.w.t
	t.Helper()
	ctx, s, sealer := k.begin(0, false)
	identities, err := k.node.Identities(ctx, k.node.is)
	if err != nil {
		t.Fatalf("%s: the node gets no identities: %v", when, err)
	}
	values, err := data.Read(ctx, s, dev, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		at := secrets.Place{Environment: "dev", Layer: v.Layer, Key: v.Key}
		if plain, err := secrets.Open(identities, at, v.Value.Plain()); err != nil || plain != k.wanted[v.Key] {
			k.lost++
			t.Errorf("%s: a node of the role reads %q of %s (%v)", when, plain, v.Key, err)
		}
	}
	if err := data.RevealSecrets(ctx, s, dev, values, sealer); err != nil || len(values) != len(k.wanted) {
		k.lost += len(k.wanted)
		t.Fatalf("%s: an administrator reads %d secrets: %v", when, len(values), err)
	}
	for _, v := range values {
		if v.Value.Plain() != k.wanted[v.Key] {
			k.lost++
			t.Errorf("%s: %s is %q", when, v.Key, v.Value.Plain())
		}
	}
}

// checkGenerations reads the secrets of all stored generations: each can be rolled back to.
func (k *keeper) checkGenerations() (read int) {
	t := k.w.t
	ctx, s, _ := k.begin(0, false)
	identities, err := k.node.Identities(ctx, k.node.is)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := targets.In(s).Generations(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		g, err := targets.In(s).Generation(ctx, "dev", n)
		if err != nil {
			t.Fatal(err)
		}
		for layer, digest := range g.Layers {
			text, err := targets.In(s).Layer(ctx, "dev", digest)
			if err != nil {
				t.Fatal(err)
			}
			found, err := hieradata.Secrets(text)
			if err != nil {
				t.Fatal(err)
			}
			for key, ciphertext := range found {
				if _, err := secrets.Open(identities, secrets.Place{Environment: "dev", Layer: layer, Key: key}, ciphertext); err != nil {
					k.lost++
					t.Errorf("data %d, %s: %v", n, key, err)
				}
				read++
			}
		}
	}
	return read
}

// rotate rotates the secrets of a role, as `pulley secret rotate` does. Only an interruption or a rollout may fail it.
func (k *keeper) rotate(role string, at int, after bool) bool {
	ctx, s, sealer := k.begin(at, after)
	_, err := data.RotateSecrets(ctx, s, dev, data.Rotation{Role: role}, sealer, k.author())
	switch {
	case err == nil:
		k.rotated++
	case errors.Is(err, targets.ErrCampaign):
		k.refused++
	case errors.Is(err, errCut) || errors.Is(err, context.Canceled):
		k.canceled++
	default:
		k.w.t.Errorf("rotation of role %q, cut at %d: %v", role, at, err)
	}
	return err == nil
}

// remove lets a machine join, and removes it as `pulley nodes remove` does. Its identities must open nothing that is encrypted after a complete rotation.
func (k *keeper) remove(i, at int, after bool, servers ...*serve) {
	t := k.w.t
	t.Helper()
	m := k.w.machine(fmt.Sprintf("gone%d", i), servers...)
	a, err := m.join(t.Context(), k.w.token(access.Token{Node: "web2", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, s, _ := k.begin(0, false)
	identity, _, err := access.IdentitiesIn(s).Get(ctx, dev, "web2")
	if err == nil {
		err = access.JoinsIn(s).RemoveNode(ctx, dev, "web2", access.Removal{At: time.Now(), By: "ann"}, records.Left)
	}
	if err != nil {
		t.Fatal(err)
	}
	rotations, err := data.RotationsAfter(ctx, s, dev, identity)
	if err != nil || len(rotations) != 2 {
		t.Fatalf("rotations after the removal: %+v, %v", rotations, err)
	}
	for _, r := range rotations {
		if !k.rotate(r.Role, at, after) {
			continue
		}
		list, err := data.Read(ctx, s, dev, "", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			mine := r.Role == "" && v.Layer == hieradata.Environment || r.Role != "" && v.Layer == hieradata.ForRole(r.Role)
			if _, err := secrets.Open(a.Identities, secrets.Place{Environment: "dev", Layer: v.Layer, Key: v.Key}, v.Value.Plain()); mine && err == nil {
				t.Errorf("the removed node reads %s after the rotation", v.Key)
			}
		}
	}
}

// set sets a secret to a new value. An interrupted set leaves the former value or the new one.
func (k *keeper) set(key, role string, at int, after bool) {
	t := k.w.t
	t.Helper()
	k.sets++
	value := fmt.Sprintf("%s %d", key, k.sets)
	ctx, s, sealer := k.begin(at, after)
	_, err := data.SetSecret(ctx, s, dev, data.LayerEdit{Scope: promotion.Scope{Role: role}}, key, value, sealer, k.author())
	switch {
	case err == nil:
		k.wanted[key] = value
	case errors.Is(err, errCut) || errors.Is(err, context.Canceled):
		ctx, s, sealer := k.begin(0, false)
		now, err := data.Read(ctx, s, dev, "", key)
		if err == nil {
			err = data.RevealSecrets(ctx, s, dev, now, sealer)
		}
		if err != nil {
			t.Fatal(err)
		}
		if now[0].Value.Plain() == value {
			k.wanted[key] = value
		}
	case errors.Is(err, targets.ErrCampaign):
	default:
		t.Errorf("set of %s, cut at %d: %v", key, at, err)
	}
}

// Rotations and removals that do not finish, because a rollout is paused or the command is killed at any request, must cost no secret:
// the recipients of the present data, and of each generation that a rollback can restore, stay.
func TestUnfinishedRotationsLoseNoSecret(t *testing.T) {
	rounds := 20 // more than the recipients that are kept without use
	if text := os.Getenv("PULLEY_TEST_ROTATIONS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, role("web", 2))
	s := w.serve(nil)
	k := &keeper{w: w, asked: s.gate.asked, admin: w.operator("ann", access.RoleAdmin, s), wanted: map[string]string{}}
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Node: "web1", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	k.node = w.joined(m, a, s)
	k.set("all::password", "", 0, false)
	k.set("web::password", "web", 0, false)
	k.check("at first")

	// Each request of a rotation, before it and after it; and rotations that complete.
	if !k.rotate("web", 0, false) {
		t.FailNow()
	}
	requests := *k.made
	for i := range rounds {
		at, after := 1+i/2*(requests+1)/(rounds/2-1), i%2 == 1
		if i%4 == 3 {
			k.remove(i, at, after, s)
		} else {
			k.rotate([]string{"web", ""}[i/24%2], at, after)
		}
		k.check(fmt.Sprintf("rotation %d, cut at %d", i, at))
		if i%5 == 0 {
			k.set("web::password", "web", at, after)
		}
	}
	if k.canceled < rounds/2 || k.rotated < 2 {
		t.Errorf("%d rotations were interrupted, and %d completed", k.canceled, k.rotated)
	}

	// A rotation that stored its recipient, and nothing else: a kill at the worst moment, again and again.
	for range maxRecipients + 2 {
		if _, err := k.admin.Sealing(t.Context(), join.SealingRequest{Environment: "dev", Role: "web", Rotate: true}); err != nil {
			t.Fatal(err)
		}
	}
	k.check("after rotations that only stored a recipient")

	desires, err := targets.In(w.st).Desires(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	p, err := journal.In(w.st).Start(t.Context(), dev, desires, rollout.Plan{Target: model.Target{Data: desires.Default.Data, DataDigest: desires.Default.DataDigest}}, k.author().Author)
	if err != nil {
		t.Fatal(err)
	}
	c, err := journal.In(w.st).Get(t.Context(), dev, p.ID, nil)
	if err == nil {
		err = journal.In(w.st).Set(t.Context(), dev, c, model.GatePaused, nil, k.author().Author)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := targets.In(w.st).Recipients(t.Context(), dev, "web")
	if err != nil {
		t.Fatal(err)
	}
	interrupted, done := k.canceled, k.rotated
	k.refused, k.canceled, k.rotated = 0, 0, 0
	if k.rotate("web", 0, false) {
		t.Error("a rotation in a paused rollout")
	}
	requests = *k.made
	for i := range rounds { // refused, or interrupted at each request before the refusal
		at, after := 0, i%4 == 2
		if i%2 == 0 {
			at = 1 + i*requests/rounds
		}
		if i%4 == 3 {
			k.remove(i, at, after, s)
		} else {
			k.rotate([]string{"web", ""}[i/4%2], at, after)
		}
		k.check(fmt.Sprintf("rotation %d in a paused rollout, cut at %d", i, at))
	}
	if k.refused < rounds/2 || k.canceled < rounds/2 || k.rotated > 0 {
		t.Errorf("%d rotations in a paused rollout were refused, %d interrupted, %d completed", k.refused, k.canceled, k.rotated)
	}
	if now, err := targets.In(w.st).Recipients(t.Context(), dev, "web"); err != nil || len(now.Recipients) != len(before.Recipients) || now.Recipients[0].Recipient != before.Recipients[0].Recipient {
		t.Errorf("refused rotations stored recipients: %d before, %d now (%v)", len(before.Recipients), len(now.Recipients), err)
	}
	read := k.checkGenerations()
	t.Logf("%d rotated, %d interrupted; in a paused rollout %d interrupted, %d refused; %d sets; %d secrets of all generations read; acknowledged secrets lost: %d",
		done, interrupted, k.canceled, k.refused, k.sets, read, k.lost)
}

// Each node's own secret is in a layer of its own. The rotation of a large role must fit into the budget of one operator, or wait for it.
func TestRotationOfManyNodesFitsIntoTheBudget(t *testing.T) {
	w := newWorld(t, role("web", 66))
	s := w.serve(nil)
	k := &keeper{w: w, admin: w.operator("ann", access.RoleAdmin, s), wanted: map[string]string{}}
	ctx, st, sealer := k.begin(0, false)
	a, err := sealer.Sealing(ctx, join.SealingRequest{Environment: "dev", Role: "web"})
	if err != nil {
		t.Fatal(err)
	}
	layers := map[hieradata.Layer][]byte{}
	for i := range 66 {
		layer := hieradata.ForNode(fmt.Sprintf("web%d", i+1))
		text, err := secrets.Seal(a.Recipient, secrets.Place{Environment: "dev", Layer: layer, Key: "web::own"}, strings.Repeat("x", 1000))
		if err == nil {
			layers[layer], err = hieradata.Set(nil, "web::own", "'"+text+"'")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	desires, err := targets.In(st).Desires(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	current, err := targets.In(st).Data(ctx, dev, desires)
	if err == nil {
		_, err = targets.In(st).ChangeData(ctx, dev, desires, current, layers, k.author().Author)
	}
	if err != nil {
		t.Fatal(err)
	}
	done, err := data.RotateSecrets(ctx, st, dev, data.Rotation{Role: "web"}, sealer, k.author())
	if err != nil || len(done.Secrets) != 66 || len(done.LeftOut) > 0 || done.Generation != 2 {
		t.Errorf("%d secrets, generation %d: %v", len(done.Secrets), done.Generation, err)
	}

	asked, requests, waits := s.gate.asked, sealer.Sealing, 0
	sealer.Sealing = func(ctx context.Context, r join.SealingRequest) (join.SealingAnswer, error) {
		asked.mu.Lock()
		if asked.every == askedEvery { // nothing is left at the first request
			asked.every = time.Second
			for _, b := range asked.buckets {
				b.left, b.at = -0.5, time.Now()
			}
		}
		asked.mu.Unlock()
		a, err := requests(ctx, r)
		if err != nil {
			waits++
		}
		return a, err
	}
	if _, err := data.RotateSecrets(ctx, st, dev, data.Rotation{Role: "web"}, sealer, k.author()); err != nil || waits == 0 {
		t.Errorf("after %d refusals: %v", waits, err)
	}
	list, err := data.ListSecrets(ctx, st, dev, "")
	if err != nil || len(list) != 66 || slices.ContainsFunc(list, func(one data.Secret) bool { return !one.Current }) {
		t.Errorf("after two rotations, some of %d secrets are not current (%v)", len(list), err)
	}
}

// withoutKey is a CA folder whose secrets.key is lost.
type withoutKey struct {
	CA
	fresh string
	err   error // of a key that is there
}

func (c *withoutKey) Kept(_ string, _ func(string) error, create func() (string, error)) (string, error) {
	if c.err != nil || c.fresh == "" && create == nil {
		return "", cmp.Or(c.err, fs.ErrNotExist)
	}
	var err error
	if c.fresh == "" {
		c.fresh, err = create()
	}
	return c.fresh, err
}

// One flag must not destroy the identities of secrets that a server decrypts, and no operator can destroy any.
func TestLostIsBelievedOnlyWhenItIsTrue(t *testing.T) {
	w := newWorld(t, role("web", 2))
	s := w.serve(nil)
	lost := &withoutKey{CA: w.ca}
	other := w.serve(func(c *Config) { c.CA = lost })
	admin := w.operator("ann", access.RoleAdmin, s)
	k := &keeper{w: w, admin: admin, wanted: map[string]string{}}
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Node: "web1", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	k.node = w.joined(m, a, s)
	k.set("web::password", "web", 0, false)
	forget := join.SealingRequest{Environment: "dev", Role: "web", Rotate: true, Lost: true}

	_, err = w.operator("olga", access.RoleOperator, other).Sealing(t.Context(), forget)
	want(t, err, join.NotAnAdmin)
	_, err = admin.Sealing(t.Context(), forget)
	want(t, err, join.NothingLost)
	k.check("after refusals")

	// Lost at one server only: the command asks each.
	there := w.operator("bea", access.RoleAdmin, other)
	if err := there.LostAt(t.Context(), "dev", "web"); err != nil {
		t.Errorf("lost at the only server: %v", err)
	}
	err = w.operator("cleo", access.RoleAdmin, other, s).LostAt(t.Context(), "dev", "web")
	want(t, err, join.NothingLost)

	// A key that is there and cannot be read is not lost.
	lost.err = errors.New("it is a link to a file that does not exist")
	for _, r := range []join.SealingRequest{forget, {Environment: "dev", Role: "web"}, {Environment: "dev", Role: "web", Rotate: true}, {Environment: "dev"}} {
		_, err := there.Sealing(t.Context(), r)
		want(t, err, join.SecretsKeyUnusable)
	}
	want(t, there.LostAt(t.Context(), "dev", "web"), join.SecretsKeyUnusable)
	lost.err = nil
	k.check("after a key that cannot be read")

	// Where it is true, the identities that can be decrypted stay.
	recipients := func() targets.Recipients {
		t.Helper()
		r, err := targets.In(w.st).Recipients(t.Context(), dev, "web")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	former := recipients()
	if _, err := there.Sealing(t.Context(), forget); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Sealing(t.Context(), join.SealingRequest{Environment: "dev", Role: "web", Rotate: true}); err != nil {
		t.Fatal(err)
	}
	_, err = there.Sealing(t.Context(), forget)
	want(t, err, join.NothingLost)
	now := recipients()
	if len(now.Recipients) != 2 {
		t.Fatalf("%d recipients", len(now.Recipients))
	}
	both := now
	both.Recipients = slices.Concat(now.Recipients, former.Recipients)
	if err := targets.In(w.st).PutRecipients(t.Context(), dev, "web", both, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Sealing(t.Context(), forget); err != nil {
		t.Fatal(err)
	}
	same := func(a, b targets.Recipient) bool { return a.Recipient == b.Recipient }
	if left := recipients().Recipients; len(left) != 3 || !slices.EqualFunc(left[1:], now.Recipients, same) {
		t.Errorf("of %d recipients, two of them readable here, %d stay beside the new one", len(both.Recipients), len(left)-1)
	}
}

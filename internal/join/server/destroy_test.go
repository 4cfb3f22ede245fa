package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
)

// stack stores a stack of dev, lets one machine join, report and be held, and gives it a machine record and an act.
func (w *world) stack(s *serve, stack string) (model.Ref, machine, string) {
	w.t.Helper()
	ctx, ref := w.t.Context(), model.Ref{Environment: "dev", Stack: stack}
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	a, err := records.In(w.st).BeginApply(ctx, ref, "ann")
	must(err)
	_, err = a.PutSpec(ctx, &environments.Environment{Name: "dev", Stack: stack, Roles: []environments.Role{role("controller", 2)}}, 0)
	must(err)
	node := model.Node{Role: "controller", Num: 1, Stack: stack}.String()
	must(a.Note(ctx, machines.Act{At: time.Now(), Node: node, Did: machines.Created, Reasons: []machines.Reason{{Code: machines.NoMachine}}, By: "ann"}))
	must(a.Hold(ctx, node, model.Hold{Mode: model.Freeze, Who: "ann"}))
	must(a.Close())
	m := w.machine("machine-of-"+stack, s)
	token := w.token(access.Token{Environment: ref.String()})
	answer, err := m.join(ctx, token, node)
	must(err)
	is := w.joined(m, answer, s)
	must(is.Progress(ctx, "", join.Progress{Environment: ref.String(), Node: node, Role: "controller", Machine: is.is.ID, Step: "puppet", State: "started"}))
	_, err = access.IdentitiesIn(w.st).Precreate(ctx, ref, model.Node{Role: "controller", Num: 2, Stack: stack}.String(), time.Now())
	must(err)
	i, _, err := access.IdentitiesIn(w.st).Get(ctx, ref, node)
	must(err)
	own := w.etcd.DB(i.User)
	must(control.In(own).Report(ctx, model.Identity{Node: node, Environment: ref.String()}, model.Status{Node: node}, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil))
	return ref, is, i.User
}

// The destruction of one stack must not destroy another one, and must leave no valid access.
func TestDestroyedStackLeavesOthersAlone(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	w.stack(s, "t42")
	before := w.etcd.Everything()
	ref, old, user := w.stack(s, "t41")
	own := func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool { return strings.HasSuffix(line, " leases") })
	}
	w.destroy(ref)
	if after := w.etcd.Everything(); !slices.Equal(own(after), own(before)) {
		t.Errorf("etcd has\n%s\nand had, before there was this stack,\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}

	// A recreated environment of the same name is another one: no earlier credential is valid for it.
	ref, _, again := w.stack(s, "t41")
	if again == user {
		t.Errorf("the node is %s again", again)
	}
	if _, err := control.In(w.etcd.DB(user)).Desire(t.Context(), model.Identity{Node: "controller1_t41", Role: "controller", Environment: ref.String()}); !errors.Is(err, etcd.ErrRevoked) {
		t.Errorf("its old certificate: %v", err)
	}
	if _, err := old.Renew(t.Context(), old.key, old.is); err == nil {
		t.Error("its old certificate is renewed")
	}
	if _, err := control.In(w.etcd.DB(again)).Desire(t.Context(), model.Identity{Node: "controller1_t41", Role: "controller", Environment: ref.String()}); err != nil {
		t.Errorf("its new certificate: %v", err)
	}
}

// A machine that joins during the destruction of its environment must leave no keys and no user.
func TestJoinDuringDestroyLeavesNothing(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	ref := model.Ref{Environment: "dev"}
	token := w.token(access.Token{Environment: "dev"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	joining := make(chan error, 20)
	for i := range 20 {
		m := w.machine("machine"+string(rune('a'+i)), s)
		go func() {
			_, err := m.join(ctx, token, []string{"controller1", "controller2"}[i%2])
			joining <- err
		}()
	}
	if err := <-joining; err != nil {
		t.Log(err)
	}
	w.destroy(ref)
	for range 19 {
		if err := <-joining; err != nil {
			t.Log(err)
		}
	}
	for _, line := range w.etcd.Everything() {
		name, _, _ := strings.Cut(line, ": ")
		if slices.Contains(strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == ' ' }), "dev") && !strings.Contains(name, "/refusals") {
			t.Errorf("left is %s", line)
		}
	}
}

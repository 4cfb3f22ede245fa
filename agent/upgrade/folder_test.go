package upgrade

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"pulley/agent"
	"pulley/internal/model"
)

func folder(t *testing.T) Folder {
	t.Helper()
	dir := t.TempDir()
	f := Folder{Dir: filepath.Join(dir, "agent"), Installed: filepath.Join(dir, "bin", "pulley-agent")}
	if err := os.Mkdir(filepath.Dir(f.Installed), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Installed, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	return f
}

func writes(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

const newDigest = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437" // of "new"

// onProbation returns a folder with a candidate, and its state.
func onProbation(t *testing.T) (Folder, State) {
	t.Helper()
	f := folder(t)
	if err := f.Fetch(newDigest, writes("new")); err != nil {
		t.Fatal(err)
	}
	s := State{}.Found(Program{Version: "1.0.0", Digest: "x"}, 0, f.File()).Tested(Program{Version: "2.0.0", Digest: newDigest}, model.AgentChoice{Try: 4}, now)
	if err := f.Save(s); err != nil {
		t.Fatal(err)
	}
	return f, s
}

func reads(t *testing.T, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || string(b) != want {
		t.Errorf("%s: %q, %v, want %q", filepath.Base(path), b, err, want)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%s can't be executed", filepath.Base(path))
	}
}

// A revert must restore exactly the previous agent.
func TestTakeoverAndUndo(t *testing.T) {
	f, s := onProbation(t)
	s, err := f.TakeOver(s, "0.9.0", now)
	if err != nil {
		t.Fatal(err)
	}
	reads(t, f.Installed, "new")
	reads(t, f.previous(), "old")
	loaded, err := f.Load()
	if err != nil || loaded.Installed == nil || loaded.Installed.Version != "2.0.0" || loaded.Candidate != nil || loaded.Previous.Version != "1.0.0" {
		t.Errorf("%+v, %v", loaded, err)
	}
	if _, err := os.Stat(f.Candidate(newDigest)); err == nil {
		t.Error("the candidate's program was not removed")
	}
	if s, err = f.Back(s, "2.0.0", unavailable("by hand"), now); err != nil {
		t.Fatal(err)
	}
	reads(t, f.Installed, "old")
	// An earlier retry by an operator, which this node never needed.
	before := model.AgentChoice{Version: "2.0.0", Try: 9}
	if move := s.Next(before, now); move != Stay {
		t.Errorf("once it was taken back: %s", move)
	}
	if _, err := f.Back(s, "1.0.0", unavailable("by hand"), now); err == nil {
		t.Error("it was taken back twice")
	}
	if s, err = f.Load(); err != nil || s.Dropped == nil || s.Dropped.Version != "2.0.0" {
		t.Fatalf("taken back twice: %+v, %v", s, err)
	}
	if _, changes := s.Seen(model.AgentChoice{Unknown: true}); changes {
		t.Error("it saw what can't be read")
	}
	s, _ = s.Seen(before)
	if _, changes := s.Seen(model.AgentChoice{Version: "2.0.0", Try: 10}); changes || s.Next(before, now) != Stay {
		t.Errorf("once the wish was seen: %+v", s.Dropped)
	}
	if move := s.Next(model.AgentChoice{Version: "2.0.0", Try: 10}, now); move != Fetch {
		t.Errorf("once it is to be tried again: %s", move)
	}
	if err := os.Remove(f.previous()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Back(s, "1.0.0", unavailable("by hand"), now); err == nil {
		t.Error("it went back to nothing")
	}
	reads(t, f.Installed, "old")
}

// A file that a power cut or a bad disk damaged must never become the agent.
func TestDamagedProgramIsNeverInstalled(t *testing.T) {
	f, s := onProbation(t)
	if err := os.WriteFile(f.Candidate(newDigest), []byte("ne"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.TakeOver(s, "1.0.0", now); err == nil {
		t.Error("a damaged candidate was put in place")
	}
	reads(t, f.Installed, "old")

	f, s = onProbation(t)
	s, err := f.TakeOver(s, "1.0.0", now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.previous(), []byte("ol"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Back(s, "2.0.0", unavailable("by hand"), now); err == nil {
		t.Error("a damaged predecessor was put in place")
	}
	reads(t, f.Installed, "new")
}

// A program without the signed digest must not stay where it could be run.
func TestPlaceRefusesOtherBytes(t *testing.T) {
	f := folder(t)
	if err := f.Fetch(newDigest, writes("other")); err == nil {
		t.Error("other bytes were taken")
	}
	if err := f.Fetch(newDigest, func(io.Writer) error { return errors.New("etcd is gone") }); err == nil {
		t.Error("an error got lost")
	}
	if _, err := os.Stat(f.Candidate(newDigest)); err == nil {
		t.Error("the program was left there")
	}
	if err := f.Fetch(newDigest, writes("new")); err != nil {
		t.Error(err)
	}
	if err := f.Fetch(newDigest, func(io.Writer) error { return errors.New("it was asked for again") }); err != nil {
		t.Error(err)
	}
	if err := f.Tidy(State{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(f.Candidate(newDigest))); err == nil {
		t.Error("an unwanted program stays")
	}
}

// A damaged state must prevent neither ticks nor upgrades. The state of a newer agent must stay unchanged.
func TestUnreadableUpgradeState(t *testing.T) {
	f, _ := onProbation(t)
	path := filepath.Join(f.Dir, stateFile)
	for _, text := range []string{"", "{", "null garbage", `{"v":1,"candidate":{"digest":"../../x"}}`, `{"v":1,"candidate":{"digest":"` + newDigest + `","good":-1}}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := f.Load()
		if err != nil || s.Candidate != nil {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"v":2,"candidate":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Load(); err == nil {
		t.Error("a newer state was read")
	}
	reads2, err := os.ReadFile(path)
	if err != nil || string(reads2) != `{"v":2,"candidate":[]}` {
		t.Errorf("a newer state was changed: %q, %v", reads2, err)
	}
}

// A program that was installed by hand differs from the compared one, whose record is then void.
func TestReplacedProgramIsComparedAgain(t *testing.T) {
	f, s := onProbation(t)
	if loaded, err := f.Load(); err != nil || loaded.Installed == nil {
		t.Fatalf("%+v, %v", loaded, err)
	}
	if err := os.WriteFile(f.Installed, []byte("by hand"), 0o755); err != nil {
		t.Fatal(err)
	}
	if loaded, err := f.Load(); err != nil || loaded.Installed != nil || loaded.Candidate == nil {
		t.Errorf("%+v, %v", loaded, err)
	}
	_ = s
}

// Two upgrades at the same time could install a mixture of two programs.
func TestOneUpgradeAtATime(t *testing.T) {
	f := folder(t)
	lock, err := f.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lock(); !errors.Is(err, agent.ErrLocked) {
		t.Errorf("a second one: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := f.Lock(); err != nil {
		t.Error(err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzParseState checks that no content of the file makes the agent panic.
func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"v":1,"candidate":{"version":"2.0.0","digest":"` + newDigest + `","since":"2026-01-01T00:00:00Z","good":2}}`))
	f.Add([]byte(`{"v":9}`))
	f.Add([]byte(`{"v":1,"dropped":{"why":"x"},"installed":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseState(b)
		if err != nil {
			return
		}
		want := model.AgentChoice{Version: "2.0.0"}
		if s.Next(want, now) == Forget && s.Forgotten(want).Next(want, now) == Forget {
			t.Errorf("%q is forgotten for ever", b)
		}
		s.Report(want, "1.0.0")
	})
}

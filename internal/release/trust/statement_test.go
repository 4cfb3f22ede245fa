package trust

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A target that nobody stated, or that somebody stated long ago, must hold no node on it unnoticed. Nothing unsigned may
// end the demand for a statement.
func TestStatements(t *testing.T) {
	alice, ci := softKey(t, 1), softKey(t, 2)
	signers := mustParse(t, "alice@dev "+text(alice.PublicKey())+"\nci@dev namespaces=\"pulley-current\" "+text(ci.PublicKey())+
		"\nbob@dev namespaces=\"pulley-release\" "+text(softKey(t, 4).PublicKey()), "")
	part := Part{Release: "2.0.0", Tree: "t2", Data: 7, DataDigest: "d7"}
	st := Statement{
		Environment: "dev", Epoch: 5, Default: part, At: now.Add(-time.Hour), Until: now.Add(time.Hour),
		Roles: map[string]Part{"db": {Release: "3.0.0", Tree: "t3"}}, Nodes: map[string]Part{"web9": {Data: 8, DataDigest: "d8"}},
	}
	signed := func(key byte, change func(*Statement)) []byte {
		c := st
		change(&c)
		record, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return Join(record, sign(t, softKey(t, key), Current, string(record)))
	}
	same := func(*Statement) {}
	stated := Target{Environment: "dev", Release: "2.0.0", Tree: "t2", Data: 7, DataDigest: "d7"}
	old := Target{Environment: "dev", Release: "1.0.0", Tree: "t1", Data: 7, DataDigest: "d7"}
	record, _ := st.Encode()
	later := HighWaterMark{Environment: "dev", Release: "2.0.0", Data: 7, Statement: 5, StatementAt: now.Unix(), Required: true}
	raised := HighWaterMark{Environment: "dev", Statement: 1<<63 - 1, StatementAt: now.Unix() + 1000, Required: true}
	seen := HighWaterMark{Environment: "dev", Release: "2.0.0", Data: 7, Statement: 5, Required: true}
	for _, c := range []struct {
		say        string
		mark       HighWaterMark
		role, node string
		target     Target
		value      []byte
		why        string // "" is covered
		epoch      int64  // remembered
	}{
		{"the stated target", seen, "web", "web1", stated, signed(1, same), "", 5},
		{"by a key for statements only", seen, "web", "web1", stated, signed(2, same), "", 5},
		{"the first statement of a node", HighWaterMark{}, "web", "web1", stated, signed(1, same), "", 5},
		{"a role with its own release", seen, "db", "db1", Target{"dev", "3.0.0", "t3", 7, "d7"}, signed(1, same), "", 5},
		{"a node with its own data", seen, "web", "web9", Target{"dev", "2.0.0", "t2", 8, "d8"}, signed(1, same), "", 5},
		{"an old target", seen, "web", "web1", old, signed(1, same), "names 2.0.0 with data 7 for this node, and etcd names 1.0.0 with data 7", 5},
		{"the release of another role", seen, "web", "web1", Target{"dev", "3.0.0", "t3", 7, "d7"}, signed(1, same), "etcd names 3.0.0", 5},
		{"the data of another node", seen, "web", "web1", Target{"dev", "2.0.0", "t2", 8, "d8"}, signed(1, same), "etcd names 2.0.0 with data 8", 5},
		{"another tree under the version", seen, "web", "web1", Target{"dev", "2.0.0", "tx", 7, "d7"}, signed(1, same), "names 2.0.0", 5},
		{"an ended statement", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Until = now }), "ended at 2026-06-15T12:00:00Z", 5},
		{"an ended statement is a demand, too", HighWaterMark{}, "web", "web1", stated, signed(1, func(s *Statement) { s.Until = now }), "ended at", 5},
		{"an earlier epoch", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch = 4 }), "is of epoch 4, and this node saw one of epoch 5", 5},
		{"from the future", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch, s.At = 9, now.Add(6*time.Minute) }), "in the future by this machine's clock", 5},
		{"by a clock slightly ahead", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.At = now.Add(4 * time.Minute) }), "", 5},
		{"none", seen, "web", "web1", stated, nil, "is missing in etcd", 5},
		{"none, on a node that never saw one", HighWaterMark{Environment: "dev"}, "web", "web1", old, nil, "", 0},
		{"none, in another environment before", HighWaterMark{Environment: "old", Statement: 9}, "web", "web1", old, nil, "", 0},
		{"unsigned", seen, "web", "web1", stated, record, "the statement of the targets of dev is not signed", 5},
		{"unsigned, on a node that never saw one", HighWaterMark{}, "web", "web1", old, record, "", 0},
		{"by an unknown key", seen, "web", "web1", stated, signed(3, same), "which is not the key of an allowed signer", 5},
		{"by a key for releases", seen, "web", "web1", stated, signed(4, same), `may not sign as "pulley-current"`, 5},
		{"signed as a release", seen, "web", "web1", stated, Join(record, sign(t, alice, Release, string(record))), `is signed as "pulley-release"`, 5},
		{"of another environment", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Environment = "production" }), `is signed for environment "production"`, 5},
		{"altered", seen, "web", "web1", stated, []byte(strings.Replace(string(signed(1, same)), `"epoch":5`, `"epoch":6`, 1)), "was altered", 5},
		{"off", seen, "web", "web1", old, signed(1, func(s *Statement) { s.Off, s.Epoch, s.Until = true, 6, time.Time{} }), "", 6},
		{"an old off", seen, "web", "web1", old, signed(1, func(s *Statement) { s.Off, s.Epoch, s.Until = true, 4, time.Time{} }), "is of epoch 4", 5},
		{"a high epoch by a key for statements only", seen, "web", "web1", stated, signed(2, func(s *Statement) { s.Epoch = now.Unix() + epochsAhead }), "", 5},
		{"a high epoch by a stolen key", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch = now.Unix() + epochsAhead }), "", now.Unix() + epochsAhead},
		{"an epoch that no change can have", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch = now.Unix() + epochsAhead + 1 }), "no change can have epoch 3781524801", 5},
		{"the highest epoch", seen, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch = 1<<63 - 1 }), "no change can have epoch 9223372036854775807", 5},
		{"after an epoch that no change can have", raised, "web", "web1", stated, signed(1, same), "", 5},
		{"after an epoch that no change can have, by a key for statements only", raised, "web", "web1", stated, signed(2, same), "", 1<<63 - 1},
		{"after an epoch that no change can have, an old target", raised, "web", "web1", old, signed(1, same), "names 2.0.0", 5},
		{"after an epoch that no change can have, none", raised, "web", "web1", stated, nil, "is missing in etcd", 1<<63 - 1},
		{"the first statement of a node, renewed", HighWaterMark{}, "web", "web1", stated, signed(2, same), "", 1},
		{"off, by a key for statements only", seen, "web", "web1", old, signed(2, func(s *Statement) { s.Off, s.Until = true, time.Time{} }), `may not sign as "pulley-rollback"`, 5},
		{"the statement that the node knows", later, "web", "web1", stated, signed(1, func(s *Statement) { s.At = now }), "", 5},
		{"an old off of the same epoch", later, "web", "web1", old, signed(1, func(s *Statement) { s.Off, s.Until = true, time.Time{} }), "saw one of the same epoch that was signed at 2026-06-15T12:00:00Z", 5},
		{"an earlier time, of the next epoch", later, "web", "web1", stated, signed(1, func(s *Statement) { s.Epoch = 6 }), "", 6},
	} {
		next, err := signers.Current(c.mark, c.role, c.node, c.target, c.value, now)
		if why := whyNot(t, err); (why == "") != (c.why == "") || !strings.Contains(why, c.why) || next.Statement != c.epoch {
			t.Errorf("%s: %q, epoch %d; want %q, %d", c.say, why, next.Statement, c.why, c.epoch)
		}
	}
	// A node remembers the time beside the epoch, of signers who decide. No statement makes the mark unreadable.
	for at, key := range map[time.Time]byte{now: 1, {}: 1, now.Add(maxSkew): 2} {
		next, err := signers.Current(HighWaterMark{}, "web", "web1", stated, signed(key, func(s *Statement) { s.Epoch, s.At = 1, at }), now)
		if err == nil {
			err = next.Save(filepath.Join(t.TempDir(), "trust.json"))
		}
		if err != nil || key == 1 && next.StatementAt != max(at.Unix(), 0) || key == 2 && next.StatementAt != 0 {
			t.Errorf("by key %d at %s: %+v: %v", key, at, next, err)
		}
	}
	ended, err := ParseStatement(signed(1, func(s *Statement) { s.Until = now.Add(-time.Hour) }))
	if err != nil || signers.Authentic(ended, "dev", now) != nil {
		t.Errorf("an ended statement cannot be renewed: %v", errors.Join(err, signers.Authentic(ended, "dev", now)))
	}
	for _, bad := range []func(*Statement){
		func(s *Statement) { s.Environment = "" }, func(s *Statement) { s.Epoch = 0 }, func(s *Statement) { s.Until = time.Time{} }, func(s *Statement) { s.Off = true },
	} {
		c := st
		bad(&c)
		if _, err := c.Encode(); err == nil {
			t.Errorf("%+v was encoded", c)
		}
	}
}

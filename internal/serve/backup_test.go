package serve

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// backedUp returns a store with an environment, and the server of its etcd.
func backedUp(t *testing.T) (*etcd.DB, *etcdtest.Server) {
	t.Helper()
	s := etcdtest.Start(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{s.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if err := specs.In(st).PutSpec(t.Context(), &environments.Environment{Name: "dev"}, 0); err != nil {
		t.Fatal(err)
	}
	return st, s
}

// restored restores a backup into a new folder, and returns the epoch of its environment.
func restored(t *testing.T, backup []byte, at time.Time) int64 {
	t.Helper()
	all, err := Restore(t.Context(), bytes.NewReader(backup), secureConfig(t), targets.Author{By: "ann", At: at})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	return all[0].Epoch
}

// A full etcd is a bad day on which a backup is needed.
func TestBackupOfAFullEtcdIsRestored(t *testing.T) {
	t.Parallel()
	st, s := backedUp(t)
	if err := s.Full(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := Backup(t.Context(), t.TempDir(), st, time.Now(), &backup); err != nil {
		t.Fatal(err)
	}
	first := restored(t, backup.Bytes(), time.Now())

	// The epochs after this restore are lost, too, if the backup is needed again.
	if second := restored(t, backup.Bytes(), time.Now().Add(time.Hour)); second < first+1000 {
		t.Errorf("an hour later the backup continues at epoch %d, after %d", second, first)
	}
}

// A pipe hides that a backup failed. What it wrote must not look like a backup.
func TestFailedBackupIsNotRestored(t *testing.T) {
	t.Parallel()
	st, _ := backedUp(t)
	var backup bytes.Buffer
	if _, err := Backup(t.Context(), t.TempDir(), st, time.Now(), &backup); err != nil {
		t.Fatal(err)
	}
	part, _, found := bytes.Cut(backup.Bytes(), []byte("PaxHeaders.0/complete")) // the begin of the last file
	if !found {
		t.Fatal("the archive has another last file")
	}
	_, err := Restore(t.Context(), bytes.NewReader(part), secureConfig(t), targets.Author{By: "ann", At: time.Now()})
	if err == nil || !strings.Contains(err.Error(), "it is incomplete") {
		t.Error(err)
	}
}

package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/machines"
)

// What is in a machine's folder. It appears whole, by a rename: while it is made it has newPrefix, while it is removed gonePrefix.
const (
	aboutFile    = "machine.json" // what was ordered
	stateFile    = "state.json"   // what its keeper says
	userdataFile = "userdata"     // until the first boot is over
	logFile      = "log"          // of the keeper, the first boot and the agent
	heldFile     = "held"         // locked as long as anything of the machine lives
	keeperFile   = "keeper"       // locked by the keeper, in a way that tells who it is

	newPrefix  = ".new."
	gonePrefix = ".gone."
)

// about is what was ordered, and as what it is known.
type about struct {
	ID       string            `json:"id"`
	Owner    string            `json:"owner"`
	Fleet    string            `json:"fleet"`
	Name     string            `json:"name"`
	Node     string            `json:"node"`
	Role     string            `json:"role"`
	Flavor   string            `json:"flavor,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Agent    string            `json:"agent"`
	Interval string            `json:"interval"`
	Hidden   []string          `json:"hidden"` // folders of the host that it finds empty
	Created  time.Time         `json:"created"`
}

// said is what a keeper last said of its machine.
type said struct {
	State   machines.State `json:"state"`
	Problem string         `json:"problem,omitempty"`
}

// segmentOf makes one name of a file of any text.
func segmentOf(text string) (string, error) {
	segment := url.PathEscape(text)
	if segment == "" || strings.HasPrefix(segment, ".") || len(segment) > 255 {
		return "", fmt.Errorf("%q can't be the name of a folder", text)
	}
	return segment, nil
}

// look returns the machine of a folder. ok is false where there is none of ours; what is there instead is left alone.
func (p *Provider) look(name string) (m machines.Machine, ok bool, err error) {
	dir := filepath.Join(p.place, name)
	var a about
	err = readJSON(filepath.Join(dir, aboutFile), &a)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return m, false, nil
	} else if err != nil {
		return m, false, err
	}
	if (machines.Mark{Owner: a.Owner, Fleet: a.Fleet}) != p.config.Mark || a.Name != name {
		return m, false, nil
	}
	lives, err := isHeld(dir) // before the state, which its keeper writes last
	var s said
	if err == nil {
		err = readJSON(filepath.Join(dir, stateFile), &s)
	}
	if errors.Is(err, fs.ErrNotExist) { // it is being deleted
		return m, false, nil
	} else if err != nil {
		return m, false, err
	}
	if !lives && (s.State == machines.Building || s.State == machines.Running) {
		s = said{machines.Stopped, "its keeper was killed, or this host was started again"}
	}
	return machines.Machine{Name: name, ID: a.ID, State: s.State, Problem: s.Problem, Flavor: a.Flavor, Created: a.Created}, true, nil
}

// isHeld tells whether anything of the machine in a folder lives.
func isHeld(dir string) (bool, error) {
	lock, err := os.OpenFile(filepath.Join(dir, heldFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	// Shared: others who look at the same time are not taken for a keeper.
	err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// sweep removes what was left half made or half removed by a program that was killed: userdata is in it. The caller holds the lock.
func (p *Provider) sweep() error {
	entries, err := os.ReadDir(p.place)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was the fleet's last
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newPrefix) && !strings.HasPrefix(e.Name(), gonePrefix) {
			continue
		}
		dir := filepath.Join(p.place, e.Name())
		lives, err := isHeld(dir)
		if err == nil && lives {
			continue // its keeper is about to put it in its place
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file, whole and flushed: of a folder whose files a power cut has emptied nobody could tell whose it is.
func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}

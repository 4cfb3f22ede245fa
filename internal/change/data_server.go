package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/store"
)

// ServerData is the live data in a folder beside a Puppet server.
type ServerData struct {
	Generation agent.Generation
	Folder     string   // of this generation
	New        bool     // the link points to it since now
	Secrets    []string // keys that were left out, as LAYER: KEY
}

// CurrentData is the link in such a folder to the generation in force.
const CurrentData = "current"

const (
	keptFolders   = 3 // a catalog that is being compiled may read an earlier generation
	abandonedTime = time.Hour
	stagingFolder = ".staging-"
)

// ExportForServer writes the live data in force into a folder of its own below dir, and points the link dir/current to it. Layers
// have no secrets: Puppet servers cannot decrypt them. A generation that is there already is not written again.
func ExportForServer(ctx context.Context, s *store.Store, ref environments.Ref, dir string) (d ServerData, err error) {
	defer func() {
		if err != nil && !errors.Is(err, agent.ErrUnreachable) {
			err = fmt.Errorf("cannot export the data of %s to %s: %w", ref, dir, err)
		}
	}()
	desires, err := s.Targets.Desires(ctx, ref)
	if err != nil {
		return d, err
	}
	data, err := s.Targets.Data(ctx, ref, desires)
	if err != nil {
		return d, err
	}
	d.Generation = agent.Generation(data.Number)
	name := fmt.Sprintf("%d-%.12s", data.Number, cmp.Or(data.Digest(), "000000000000")) // a restored etcd uses numbers again
	d.Folder = filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return d, err
	}
	files := map[string][]byte{}
	for _, layer := range data.SortedLayers() {
		text, err := readLayer(ctx, s, ref, data, layer)
		if err != nil {
			return d, err
		}
		plain, secrets, err := hieradata.WithoutSecrets(text)
		if err != nil {
			return d, fmt.Errorf("layer %s: %w", layer, err)
		}
		files[layer.File()] = plain
		for _, key := range secrets {
			d.Secrets = append(d.Secrets, string(layer)+": "+key)
		}
	}
	if err := writeGeneration(dir, name, files); err != nil {
		return d, err
	}
	if d.New, err = link(dir, name); err != nil {
		return d, err
	}
	return d, removeGenerations(dir, name)
}

// writeGeneration makes the folder of a generation whole, and durable.
func writeGeneration(dir, name string, files map[string][]byte) (err error) {
	if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
		return nil
	}
	staging, err := os.MkdirTemp(dir, stagingFolder)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(staging))
		}
	}()
	if err := os.Chmod(staging, 0o750); err != nil {
		return err
	}
	for file, text := range files {
		path := filepath.Join(staging, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		if err := atomicfile.Write(path, text, 0o640); err != nil {
			return err
		}
	}
	if err := os.Rename(staging, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) { // another export was faster
		return err
	}
	return errors.Join(atomicfile.SyncFolder(dir), os.RemoveAll(staging))
}

// link points the link to a folder with one rename, so that each lookup finds it.
func link(dir, name string) (changed bool, err error) {
	path := filepath.Join(dir, CurrentData)
	switch has, err := os.Readlink(path); {
	case err == nil && has == name:
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("%s is not a link\nremove it, or name another folder", path)
	}
	temporary := filepath.Join(dir, stagingFolder+CurrentData+fmt.Sprintf("-%d", os.Getpid()))
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.Symlink(name, temporary); err != nil {
		return false, err
	}
	if err := os.Rename(temporary, path); err != nil {
		return false, errors.Join(err, os.Remove(temporary))
	}
	return true, atomicfile.SyncFolder(dir)
}

// removeGenerations removes all but the newest folders, and what interrupted exports left.
func removeGenerations(dir, current string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type folder struct {
		name string
		at   time.Time
	}
	var others []folder
	var problems []error
	for _, e := range entries {
		info, err := e.Info()
		number, digest, _ := strings.Cut(e.Name(), "-")
		switch {
		case err != nil: // another export removed it
		case strings.HasPrefix(e.Name(), stagingFolder) && time.Since(info.ModTime()) > abandonedTime:
			problems = append(problems, os.RemoveAll(filepath.Join(dir, e.Name())))
		case e.IsDir() && len(digest) == 12 && strings.Trim(number, "0123456789") == "" && e.Name() != current:
			others = append(others, folder{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(others, func(a, b folder) int { return b.at.Compare(a.at) })
	for _, f := range others[min(len(others), keptFolders):] {
		problems = append(problems, os.RemoveAll(filepath.Join(dir, f.name)))
	}
	return errors.Join(problems...)
}

// FollowData repeats ExportForServer until ctx ends, and calls each with every result. Its end is no error.
func FollowData(ctx context.Context, s *store.Store, ref environments.Ref, dir string, interval time.Duration, each func(ServerData, error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		d, err := ExportForServer(ctx, s, ref, dir)
		if ctx.Err() != nil {
			return
		}
		each(d, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/content"
)

// ServerData is the live data in a folder beside a Puppet server.
type ServerData struct {
	Generation model.Generation
	Folder     string   // of this generation
	New        bool     // the link points to it since now
	Secrets    []string // keys that were left out, as LAYER: KEY

	digest string // of the generation, in the target
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
func ExportForServer(ctx context.Context, s *etcd.DB, ref model.Ref, dir string) (ServerData, error) {
	return exportForServer(ctx, s, ref, dir, ServerData{})
}

// exportForServer is ExportForServer after an earlier export. If that one is still in force and in its place, it is the result, after
// one request to etcd.
func exportForServer(ctx context.Context, s *etcd.DB, ref model.Ref, dir string, earlier ServerData) (d ServerData, err error) {
	defer func() {
		if err != nil && !errors.Is(err, model.ErrUnreachable) {
			err = fmt.Errorf("cannot export the data of %s to %s: %w", ref, dir, err)
		}
	}()
	target, err := targets.In(s).InForce(ctx, ref)
	if err != nil {
		return d, err
	}
	if target.Data == earlier.Generation && target.DataDigest == earlier.digest && earlier.inPlace(dir) {
		earlier.New = false
		return earlier, nil
	}
	var data targets.Data
	if target.Data > 0 {
		g, err := targets.In(s).Generation(ctx, ref.String(), target.Data)
		if err != nil {
			return d, err
		}
		data.Generation = g.Generation
	}
	d.Generation, d.digest = target.Data, target.DataDigest
	name := fmt.Sprintf("%d-%.12s", data.Number, cmp.Or(data.Digest(), "000000000000")) // a restored etcd uses numbers again
	d.Folder = filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return d, err
	}
	former := d.Folder
	if _, err := os.Lstat(former); err != nil {
		if has, err := filepath.EvalSymlinks(filepath.Join(dir, CurrentData)); err == nil { // another export may change the link
			former = has
		}
	}
	var layers []serverLayer
	for _, layer := range data.SortedLayers() {
		l, secrets, err := readServerLayer(ctx, s, ref, data, layer, former)
		if err != nil {
			return d, err
		}
		layers = append(layers, l)
		for _, key := range secrets {
			d.Secrets = append(d.Secrets, string(layer)+": "+key)
		}
	}
	if err := writeGeneration(dir, name, layers); err != nil {
		return d, err
	}
	if d.New, err = link(dir, name); err != nil {
		return d, err
	}
	return d, removeGenerations(dir, name)
}

// inPlace reports whether the link points to the export's folder.
func (d ServerData) inPlace(dir string) bool {
	if d.Folder == "" {
		return false
	}
	path := filepath.Join(dir, CurrentData)
	has, err := os.Readlink(path)
	if err != nil || has != filepath.Base(d.Folder) {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// serverLayer is the file of a layer without its secrets.
type serverLayer struct {
	file   string // below the folder of a generation
	text   []byte
	former string // a file with this text; "" for none
}

// readServerLayer reads a layer from the former folder if a file there has its digest, else from etcd. A layer with secrets never has:
// its keys are named for each generation.
func readServerLayer(ctx context.Context, s *etcd.DB, ref model.Ref, data targets.Data, layer hieradata.Layer, former string) (l serverLayer, secrets []string, err error) {
	l.file = layer.File()
	former = filepath.Join(former, l.file)
	if info, err := os.Lstat(former); err == nil && info.Mode().IsRegular() {
		if text, err := os.ReadFile(former); err == nil && hieradata.Digest(text) == data.Layers[layer] {
			l.text, l.former = text, former
			return l, nil, nil
		}
	}
	text, err := readLayer(ctx, s, ref, data, layer)
	if err != nil {
		return l, nil, err
	}
	if l.text, secrets, err = hieradata.WithoutSecrets(text); err != nil {
		return l, nil, fmt.Errorf("layer %s: %w", layer, err)
	}
	return l, secrets, nil
}

// writeGeneration makes the folder of a generation whole, and durable. Files of the former generation are linked: nothing writes to a
// file after it has its name.
func writeGeneration(dir, name string, layers []serverLayer) (err error) {
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
	written := map[string]bool{staging: true}
	for _, l := range layers {
		path := filepath.Join(staging, l.file)
		folder := filepath.Dir(path)
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
		written[folder] = true
		if l.former != "" && os.Link(l.former, path) == nil {
			continue
		}
		if err := atomicfile.WriteVolatile(path, l.text, 0o640); err != nil {
			return err
		}
		written[path] = true
	}
	if err := flush(staging, written); err != nil {
		return err
	}
	if err := os.Rename(staging, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) { // another export was faster
		return err
	}
	return errors.Join(atomicfile.SyncFolder(dir), os.RemoveAll(staging))
}

// flush makes the files and folders below a folder durable: the rename that follows must not survive a power cut without them.
func flush(folder string, written map[string]bool) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	// SyncFolder suits files as well.
	return errors.Join(content.FlushAll(f, slices.Sorted(maps.Keys(written)), atomicfile.SyncFolder), f.Close())
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

// Follow repeats ExportForServer until ctx ends, and calls each with every result. Its end is no error.
func Follow(ctx context.Context, s *etcd.DB, ref model.Ref, dir string, interval time.Duration, each func(ServerData, error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last ServerData
	for {
		d, err := exportForServer(ctx, s, ref, dir, last)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			last = d
		}
		each(d, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

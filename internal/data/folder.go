package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"pulley/hieradata"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// Import makes the live data of an environment that of a folder: a generation in which each layer is the folder's, and others are
// removed. A secret that differs must have been set at its place in this environment: sealer asks serve.
func Import(ctx context.Context, s *etcd.DB, ref model.Ref, dir string, encrypted bool, sealer func() (Sealer, error), a promotion.Author) (done Edited, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Edited{}, fmt.Errorf("cannot import %s: %w", dir, err)
	}
	defer root.Close()
	wanted, err := hieradata.Folder(root.FS())
	if err != nil {
		return Edited{}, fmt.Errorf("cannot import %s: %w", dir, err)
	}
	if len(wanted) == 0 {
		return Edited{}, fmt.Errorf("cannot import %s: it has no data\n`pulley data revert 0 -e %s` removes all live data", dir, ref)
	}
	return again(func() (Edited, error) { return importFolder(ctx, s, ref, wanted, encrypted, sealer, a) })
}

func importFolder(ctx context.Context, s *etcd.DB, ref model.Ref, wanted map[hieradata.Layer][]byte, encrypted bool, sealer func() (Sealer, error), a promotion.Author) (Edited, error) {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if err != nil {
		return Edited{}, err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return Edited{}, err
	}
	recipients, err := guardRecipients(ctx, s, ref, &data)
	if err != nil {
		return Edited{}, err
	}
	next := data
	next.Layers = map[hieradata.Layer]string{}
	for layer, text := range wanted {
		next.Layers[layer] = hieradata.Digest(text)
	}
	changed := changedLayers(data.Generation, next.Generation)
	slices.SortFunc(changed, hieradata.CompareLayers)
	layers, all, problems := map[hieradata.Layer][]byte{}, []Difference{}, []error{}
	var secrets []Difference
	of := newLayering(ctx, s, ref, f)
	for _, layer := range changed {
		e := LayerEdit{Scope: scopeOf(layer), Common: layer == hieradata.Common, Attribute: attributeOf(layer), Encrypted: encrypted}
		if _, has := data.Layers[layer]; !has {
			problems = append(problems, known(f, e.Scope), of.check(layer))
		}
		before, err := readLayer(ctx, s, ref, data, layer)
		if err != nil {
			return Edited{}, err
		}
		diffs, err := differences(layer, before, wanted[layer])
		if err != nil {
			return Edited{}, err
		}
		for _, d := range diffs {
			if d.ToSecret != "" {
				secrets = append(secrets, d)
				continue
			}
			problems = append(problems, e.check(d, ref))
		}
		layers[layer], all = wanted[layer], append(all, diffs...)
	}
	if err := errors.Join(errors.Join(problems...), importedSecrets(ctx, ref, f, recipients, secrets, sealer)); err != nil {
		return Edited{}, err
	}
	if len(all) == 0 {
		return signData(ctx, s, ref, f, data, "", a)
	}
	return of.write(data, layers, all, a)
}

// known refuses a layer of a role or a node that the environment does not have: its name may be misspelled.
func known(f fleet.FleetState, scope promotion.Scope) error {
	if scope.Role != "" {
		return fleet.CheckRole(f.Spec, scope.Role)
	}
	if scope.Node == "" {
		return nil
	}
	registered := map[string]bool{}
	for name := range f.Hosts {
		registered[name] = true
	}
	return fleet.CheckNode(f.Spec, registered, scope.Node)
}

// Export writes the live data of an environment into a folder, in the form that Import reads. It returns the generation, and the
// files that it wrote. Without replace, it refuses to change a file, and to leave a layer there that the data does not have; with
// replace, it removes these layers.
func Export(ctx context.Context, s *etcd.DB, ref model.Ref, dir string, replace bool) (number model.Generation, files []string, err error) {
	f, err := promotion.Find(ctx, s, ref, promotion.Scope{})
	if err != nil {
		return 0, nil, err
	}
	data, err := targets.In(s).Data(ctx, ref, f.Desires)
	if err != nil {
		return 0, nil, err
	}
	texts := map[string][]byte{}
	for layer := range data.Layers {
		if texts[layer.File()], err = readLayer(ctx, s, ref, data, layer); err != nil {
			return 0, nil, err
		}
	}
	fail := func(err error) (model.Generation, []string, error) {
		return 0, nil, fmt.Errorf("cannot export the data of %s to %s: %w", ref, dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	h, err := newLayering(ctx, s, ref, f).hierarchy(f.Desires.Default.Release)
	if err != nil {
		return fail(err)
	}
	gone, err := gone(dir, texts, h)
	if err != nil {
		return fail(err)
	}
	for _, layer := range data.SortedLayers() {
		file := filepath.Join(dir, layer.File())
		switch there, err := bounded.ReadFile(file, hieradata.MaxInputBytes); {
		case err == nil && string(there) == string(texts[layer.File()]):
			delete(texts, layer.File())
		case err == nil && !replace:
			return fail(fmt.Errorf("%s has other content\n--replace overwrites it", layer.File()))
		case err != nil && !os.IsNotExist(err):
			return fail(err)
		}
	}
	if len(gone) > 0 && !replace {
		if layer, is := strings.CutSuffix(gone[0], ".yml"); is && data.Layers[hieradata.Layer(layer)] != "" {
			return fail(fmt.Errorf("%s is there, and export writes %s.yaml\n--replace removes it", gone[0], layer))
		}
		return fail(fmt.Errorf("%s is there, and the live data has no such layer\n--replace removes it", gone[0]))
	}
	for _, layer := range data.SortedLayers() {
		text, has := texts[layer.File()]
		if !has {
			continue
		}
		file := filepath.Join(dir, layer.File())
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fail(err)
		}
		if err := atomicfile.Write(file, text, 0o644); err != nil {
			return fail(err)
		}
		files = append(files, layer.File())
	}
	for _, name := range gone {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return fail(err)
		}
	}
	return model.Generation(data.Number), files, nil
}

// gone lists the files of layers in a folder that are not among texts, also those that end in .yml: import would refuse a layer that
// has two files. Files of undeclared attributes are none.
func gone(dir string, texts map[string][]byte, h hieradata.Hierarchy) (names []string, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != "." && strings.HasPrefix(d.Name(), ".") && d.IsDir() {
			return fs.SkipDir
		}
		layer, isYAML := strings.TrimSuffix(name, path.Ext(name)), path.Ext(name) == ".yaml" || path.Ext(name) == ".yml"
		if _, has := texts[name]; !has && isYAML && !d.IsDir() && hieradata.Layer(layer).Check() == nil && h.Declares(hieradata.Layer(layer)) {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

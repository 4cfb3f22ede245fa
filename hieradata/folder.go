package hieradata

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"pulley/internal/bounded"
)

// Folder reads live data from a folder, with one file for each layer: common.yaml, environment.yaml, roles/ROLE.yaml,
// nodes/NODE.yaml and ATTRIBUTE/VALUE.yaml. It returns the canonical bytes of each layer that has keys. A data file with another name is an error, as is one that
// Parse refuses; other files, and names that begin with a dot, do not count.
func Folder(dir fs.FS) (map[Layer][]byte, error) {
	layers, files, problems := map[Layer][]byte{}, map[Layer]string{}, []error{}
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json", ".eyaml"}, path.Ext(name)):
			return nil
		}
		layer := Layer(strings.TrimSuffix(strings.TrimSuffix(name, ".yaml"), ".yml"))
		switch first, twice := files[layer]; {
		case layer.Check() != nil:
			problems = append(problems, fmt.Errorf("%s is no layer: a file is common.yaml, environment.yaml, roles/ROLE.yaml, nodes/NODE.yaml or ATTRIBUTE/VALUE.yaml", name))
			return nil
		case twice:
			problems = append(problems, fmt.Errorf("%s and %s are the same layer", first, name))
			return nil
		case !d.Type().IsRegular():
			problems = append(problems, fmt.Errorf("%s is not a file", name))
			return nil
		}
		files[layer] = name
		f, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		text, err := bounded.Read(f, MaxInputBytes)
		if err == nil {
			layers[layer], err = Parse(text)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		if len(layers[layer]) == 0 {
			delete(layers, layer)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const shown = 10
	if more := len(problems) - shown; more > 0 {
		problems = append(problems[:shown], fmt.Errorf("and %d more", more))
	}
	return layers, errors.Join(problems...)
}

// File returns the name of a layer's file in a folder that Folder reads.
func (l Layer) File() string { return string(l) + ".yaml" }

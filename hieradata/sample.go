package hieradata

import (
	"embed"
	"io/fs"
)

//go:embed all:sample
var sample embed.FS

// Sample returns the data that `pulley init` writes to the folder hieradata of a new control repository.
func Sample() fs.FS {
	sub, err := fs.Sub(sample, "sample")
	if err != nil {
		return sample // impossible: the name is a valid path
	}
	return sub
}

package hieradata

import (
	"embed"
	"io/fs"
)

//go:embed all:sample
var sample embed.FS

// Sample is the data that `pulley init` writes into the folder hieradata of a new control repository.
func Sample() fs.FS {
	sub, err := fs.Sub(sample, "sample")
	if err != nil {
		return sample // can't happen: the name is a valid path
	}
	return sub
}

package puppet

import (
	"embed"
	"io/fs"
)

//go:embed all:repo
var files embed.FS

// Repo is the starter control repository. Files below validate.d are meant to be executable; an embedded file has no mode.
func Repo() fs.FS { return below("repo") }

// Module is the module "pulley" by itself: its root holds manifests/.
func Module() fs.FS { return below("repo/modules/pulley") }

func below(dir string) fs.FS {
	sub, err := fs.Sub(files, dir)
	if err != nil {
		return files // can't happen: the names above are valid paths
	}
	return sub
}

// Package source makes ready what a release is read from: a folder as it lies on disk, or the tree of a commit, with the
// modules of its Puppetfile, the rules of what is left out, and what git knows of it.
//
//	Open      a folder and options → a Folder for content.ReadTree, with Facts; Close takes away what was made for it
//	Ignore    what of it is left out: .pulleyignore, and what editors, git, g10k and r10k leave behind
//	Cached    objects that were read or made before, so that the next release needs them from nobody
//
// It must never write in the operator's folder, work tree, index or repository, never leave a child process behind, and
// never trust what its cache says.
package source

// Package source prepares the folder that a release is read from: a folder on disk or the tree of a commit. It adds the
// modules of the Puppetfile, the ignore rules, and facts from git.
//
//	Open      a folder and options → a Folder for content.ReadTree, with Facts; Close removes its temporary files
//	Ignore    reports paths to leave out: .pulleyignore, and files of editors, git, g10k and r10k
//	Cached    keeps earlier objects on disk, so that the next release need not fetch them
//
// It must never write to the operator's folder, work tree, index or repository, leave a child process behind, or trust
// its cache.
package source

// Package controlrepo owns the operator's control repository as a folder. It creates a new repository and validates one
// before publication.
//
// It must never use etcd, change an existing repository, or run code of a repository: Puppet only parses the manifests.
package controlrepo

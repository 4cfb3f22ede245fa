// Package controlrepo owns the operator's control repository as a folder: it writes a new one, and says what is wrong with one
// before it is published.
//
// It must never talk to etcd, never change a repository that exists, and never run what a repository contains: Puppet only
// parses the manifests.
package controlrepo

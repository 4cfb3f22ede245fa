// Package server issues certificates to machines and operators in `pulley serve`. A pure function judges each request
// (judge.go). The server then records the identity in one transaction, and creates its user in etcd.
//
// It must never accept a request that it cannot judge, create anything for a refused request, or issue a name twice.
package server

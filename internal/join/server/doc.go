// Package server is the side of `pulley serve` that machines and operators ask for certificates. It judges a request by a pure
// function (judge.go), makes users in etcd, and records who is who in one transaction.
//
// It must never say yes to what it can't judge, never create anything for who is refused, and never hand out a name twice.
package server

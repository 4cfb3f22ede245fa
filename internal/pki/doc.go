// Package pki owns identities: the fleet's certificate authorities, the certificates that they sign, the names in
// them, and the identity files of machines and operators. It must never decide who gets a certificate, and never
// access etcd. It must never write a private key anywhere but into the requested file.
package pki

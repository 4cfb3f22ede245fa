// Package pki owns who is who: the fleet's certificate authorities, the certificates that they sign, the names in them, and
// the files in which a machine or an operator keeps an identity. It never decides who may have a certificate, never talks to
// etcd, and a private key leaves it only into the file that it was asked to write.
package pki

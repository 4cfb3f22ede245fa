// Package trust decides whether a record from etcd is authentic, and whether a node may take a target. It owns the form
// of signed records, the list of allowed signers, the high-water mark and the permits. The mark prevents unnoticed
// downgrades; operators sign permits to allow downgrades.
//
// Signatures have the format of OpenSSH (PROTOCOL.sshsig), and so has the list of signers (ssh-keygen(1), ALLOWED
// SIGNERS). Everything can therefore be checked without Pulley, with `ssh-keygen -Y verify`. Where the two differ, this
// package is stricter: one unreadable line makes a list invalid.
//
// The package must never query etcd or read the clock. It must never accept a record because data is missing: missing,
// damaged or unknown data is a refusal. It runs ssh-keygen to sign, but not to verify: nodes need no ssh-keygen.
package trust

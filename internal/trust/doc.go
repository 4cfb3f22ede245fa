// Package trust decides whether a record that came from etcd is authentic, and whether a node may go where it is sent. It
// owns the form of signed records, the list of allowed signers, what a node remembers so that nothing old comes back
// unnoticed, and the permits by which an operator lets nodes go back.
//
// Signatures are OpenSSH's (PROTOCOL.sshsig), and so is the list of signers (ssh-keygen(1), ALLOWED SIGNERS), so that
// everything can be checked without Pulley: `ssh-keygen -Y verify` says the same. Where the two differ this package is the
// stricter one: a list with a line that it can't read counts as a whole for nothing.
//
// It must never ask etcd or the clock, and never say yes for want of an answer: what is missing, damaged or not understood
// is a refusal. It signs by running ssh-keygen, and verifies without: nodes need none.
package trust

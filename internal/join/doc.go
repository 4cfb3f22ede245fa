// Package join turns a machine into a node, and a person into an operator. It owns the protocol of both sides, and the
// client. Package server below it is the other side, which pulley-agent does not link.
//
// A key never leaves its machine. A request carries a join token and a signing request (CSR), and is bound to its TLS
// connection: a captured request is useless on another one. The client must never send a token to a server whose chain
// does not lead to a CA with one of the given pins: see pki.Pinned.
package join

// Package join is how a machine becomes a node, and a person an operator: the words that both sides use, and the side that
// asks. The side that answers is package desk below it, which pulley-agent does not link.
//
// The key is made where it is used and never leaves it. A request carries a join token and a signing request (CSR); it is
// bound to the TLS connection that it travels on, so that what somebody captured is worth nothing on another. It must never
// send a token to a server whose chain does not lead to a CA with one of the given pins: see pki.Pinned.
package join

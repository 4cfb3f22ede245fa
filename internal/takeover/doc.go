// Package takeover puts Pulley in the place of the puppet agent that a machine runs already, in steps that can be undone. It
// owns what starts such an agent (its units, its lines in crontabs), Puppet's own lock against it, and takeover.json, where
// all of that is written down before it is changed. It never runs Puppet, never removes a package, and never touches a
// process: with the lock in place an agent that still runs does nothing.
package takeover

// Package takeover replaces the puppet agent of a machine by Pulley, in steps that can be undone. It owns the units and
// crontab lines that start such an agent, Puppet's own lock against it, and takeover.json. It records every change in
// takeover.json before it makes the change. It must never run Puppet, remove a package, or signal a process: the lock
// stops a running agent from applying catalogs.
package takeover

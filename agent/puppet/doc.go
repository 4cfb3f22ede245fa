// Package puppet is Puppet as a child process: it installs Puppet, runs it on a release and reads what came of it.
//
// A run is hermetic. Every folder and setting that could carry something of the machine's own Puppet into a run is
// generated or private: confdir, codedir, libdir, vardir, ssldir, Hiera's global layer, report and environment variables.
// What stays of the machine, on purpose: its own external facts (/etc/facter/facts.d and /etc/puppetlabs/facter/facts.d
// describe the machine and are put there by its owner, not by an old Puppet) and the modules that come with the
// installed Puppet itself (/usr/share/puppet/modules, Puppet's vendored modules), which a release's own modules shadow.
//
// A Puppet that was started is never left without someone who ends it: its agent does at the deadline, and when the
// agent itself was killed, the next one waits for the old Puppet or, past that deadline, ends it. Puppet writes its
// output straight to a file, so an agent that dies takes no running catalog along.
//
// The package must never decide whether or on what target Puppet runs, never talk to etcd, never write outside its Dir,
// apart from the catalog lock of the machine's own Puppet that it holds during a run, and never stop a run because of
// anything but the run's deadline or the end of its own process.
package puppet

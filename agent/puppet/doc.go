// Package puppet runs Puppet as a child process: it installs Puppet, runs it on a release and reads the result.
//
// A run is hermetic. Every folder and setting through which the machine's own Puppet could influence a run is generated
// or private: confdir, codedir, libdir, vardir, ssldir, Hiera's global layer, report and environment variables. Two
// parts of the machine are used on purpose. Its external facts (/etc/facter/facts.d and /etc/puppetlabs/facter/facts.d)
// describe the machine and come from its owner. The modules of the installed Puppet (/usr/share/puppet/modules,
// Puppet's vendored modules) stay available, and a release's own modules override them.
//
// Every started Puppet has an agent that ends it. Its own agent does so at the deadline. After that agent was killed,
// the next agent waits for the old Puppet until the deadline, and then ends it. Puppet writes its output directly to a
// file, so that an agent's death does not interrupt a catalog.
//
// The package must never decide whether Puppet runs or on which target. It must never talk to etcd. It must never write
// outside its Dir, except the catalog lock of the machine's own Puppet, which it holds during a run. It must never stop
// a run, except at the run's deadline or at the end of its own process.
package puppet

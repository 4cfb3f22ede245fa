// Package puppettest is the contract that Pulley expects of Puppet, and a scripted fake Puppet that keeps it.
//
// Suite runs the contract on any Puppet: plain `go test` on the fake, `go test -tags e2e` on the one that is installed.
// Each case is one real manifest whose comments tell the fake what the manifest does. Other packages test against the
// fake; it may stand for Puppet only as far as the suite shows that both behave alike, so new behaviour begins with a
// case here.
//
// The fake is a program. Main is its main function; a test binary becomes it when it is started under the name `puppet`:
// call RunAsPuppet first in TestMain (testscript.Main does the same for registered commands), and Write to get an
// executable. Directives are comment lines in the manifests of the environment:
//
//	# fake: node REGEXP                the only node that has a node statement
//	# fake: compile-error MESSAGE      the catalog does not compile
//	# fake: compile-sleep SECONDS      compiling takes long
//	# fake: refuse-fact NAME MESSAGE   the catalog does not compile where NAME is a custom fact
//	# fake: integer KEY                the value of KEY in the live data must be an integer, or there is none
//	# fake: cycle                      a dependency cycle
//	# fake: file PATH TEXT             a file with this content
//	# fake: insist PATH TEXT           the same with `noop => false`
//	# fake: fail RESOURCE MESSAGE      a resource that fails
//	# fake: skip RESOURCE              a resource that depends on a failed one
//	# fake: refresh-fail RESOURCE MSG  a resource that fails when it is refreshed
//	# fake: sleep SECONDS              a command that takes long, in a session of its own, as Puppet runs commands
//	# fake: signal TERM|KILL           a command that sends Puppet a signal
//	# fake: no-report                  the report can't be written
//	# fake: print COUNT TEXT           a lot of output while the catalog compiles
//
// In every argument %{env}, %{certname}, %{manifest}, %{fact:a.b} (a part of the fact `pulley`) and %{data:KEY,DEFAULT}
// (live data) are replaced.
//
// Each start appends its command line to the file fake-starts in the vardir it was given and to the one beside the
// executable, so that a test can show that Puppet was not started. It must never be linked into a program that ships.
package puppettest

// Package puppettest is the contract between Pulley and Puppet, and a scripted fake Puppet that satisfies it.
//
// Suite runs the contract on any Puppet: plain `go test` on the fake, `go test -tags e2e` on the installed Puppet. Each
// case is one real manifest whose comments are directives for the fake. Other packages test against the fake. The fake
// may replace Puppet only in behaviour that the suite checks on both. New behaviour therefore needs a case here first.
//
// The fake is a program, and Main is its main function. A test binary becomes the fake when it is started under the
// name `puppet`. Call RunAsPuppet first in TestMain (testscript.Main does the same for registered commands), and Write
// to get an executable. Directives are comment lines in the manifests of the environment:
//
//	# fake: node REGEXP                the only node with a node statement
//	# fake: compile-error MESSAGE      the catalog does not compile
//	# fake: compile-sleep SECONDS      the compilation takes this long
//	# fake: refuse-fact NAME MESSAGE   the catalog does not compile if NAME is a custom fact
//	# fake: integer KEY                the value of KEY in the live data, if any, must be an integer
//	# fake: cycle                      a dependency cycle
//	# fake: file PATH TEXT             a file with this content
//	# fake: insist PATH TEXT           the same with `noop => false`
//	# fake: fail RESOURCE MESSAGE      a resource that fails
//	# fake: skip RESOURCE              a resource that depends on a failed one
//	# fake: refresh-fail RESOURCE MSG  a resource that fails when it is refreshed
//	# fake: sleep SECONDS              a command that takes this long, in its own session, as Puppet runs commands
//	# fake: signal TERM|KILL           a command that sends Puppet a signal
//	# fake: no-report                  the report cannot be written
//	# fake: print COUNT TEXT           much output during the compilation
//
// Every argument may contain %{env}, %{certname}, %{manifest}, %{fact:a.b} (a part of the fact `pulley`) and
// %{data:KEY,DEFAULT} (live data).
//
// Each start appends its command line to the file fake-starts in its vardir, and to the one beside the executable.
// Tests use it to prove that Puppet was not started. The package must never be linked into a released program.
package puppettest

// Package puppettest is a scripted fake Puppet that satisfies the contract between Pulley and Puppet.
//
// Its tests are the contract, and run on any Puppet: plain `go test` on the fake, `go test -tags e2e` on the installed
// Puppet. Each case is one real manifest whose comments are directives for the fake. The fake may replace Puppet only in
// behaviour that the contract checks on both. New behaviour therefore needs a case first.
//
// The fake is a program. A test binary becomes the fake when it is started under the name `puppet`. Call RunAsPuppet
// first in TestMain, and Write to get an executable. Directives are comment lines in the manifests of the environment:
//
//	# fake: node REGEXP                the only node with a node statement
//	# fake: compile-error MESSAGE      the catalog does not compile
//	# fake: compile-sleep SECONDS      the compilation takes this long
//	# fake: refuse-fact NAME MESSAGE   the catalog does not compile if NAME is a custom fact
//	# fake: integer KEY                the value of KEY in the live data, if any, must be an integer
//	# fake: cycle                      a dependency cycle
//	# fake: file PATH TEXT             a file with this content, in which \n is a newline
//	# fake: insist PATH TEXT           the same with `noop => false`
//	# fake: pending PATH TEXT          the same with `noop => true`
//	# fake: tagged TAG PATH TEXT       the same with a tag
//	# fake: fail RESOURCE MESSAGE      a resource that fails
//	# fake: skip RESOURCE              a resource that depends on a failed one
//	# fake: refresh RESOURCE            a resource that a change of another one refreshes
//	# fake: refresh-fail RESOURCE MSG  a resource that fails when it is refreshed
//	# fake: sleep SECONDS              a command that takes this long, in its own session, as Puppet runs commands
//	# fake: signal TERM|KILL           a command that sends Puppet a signal
//	# fake: no-report                  the report cannot be written
//	# fake: print COUNT TEXT           much output during the compilation
//	# fake: stray TEXT                 output on standard error before Puppet's first message, as of a fact
//	# fake: fact NAME JSON              a custom fact of the release
//	# fake: config-version TEXT         the version of the catalog; of puppet agent only, as the next two
//	# fake: other-environment NAME      the server gives a catalog of another environment
//	# fake: source PATH                 a file with the content x, which the server has
//	# fake: classes NAME ...           the classes of the catalog; without the directive, they are unknown
//
// Every argument may contain %{env}, %{certname}, %{manifest}, %{fact:a.b} (a part of the fact `pulley`),
// %{trusted:NAME} (a trusted extension), %{external:NAME} (a parameter of the external node classifier), %{data:KEY,DEFAULT} (live data),
// %{setting:NAME}, %{retrieved:NAME} (a value of trusted_external_command) and %{found:NAME} (a fact in a folder of factpath).
//
// Each start appends its command line to the file fake-starts in its vardir, and to the one beside the executable.
// Tests use it to prove that Puppet was not started. The package must never be linked into a released program.
package puppettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// RunAsPuppet runs the fake and exits if the process was started under the name `puppet`. Call it first in TestMain.
func RunAsPuppet() {
	if filepath.Base(os.Args[0]) == "puppet" {
		os.Exit(fake())
	}
}

// Write creates dir/puppet, the fake as a program. The calling test's TestMain must call RunAsPuppet. By default, the
// fake uses dir/etc and dir/var as the confdir and vardir of the machine's own Puppet.
func Write(t testing.TB, dir string) (program string) {
	t.Helper()
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "puppet")
	if err := os.Symlink(me, program); err != nil {
		t.Fatal(err)
	}
	return program
}

// Starts returns the command lines of all starts of the fake in dir, oldest first.
func Starts(t testing.TB, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "fake-starts"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// fake is the fake's main function. It reads os.Args and returns the exit code.
func fake() int {
	home := filepath.Dir(os.Args[0])
	if !strings.Contains(os.Args[0], "/") {
		if path, err := exec.LookPath(os.Args[0]); err == nil {
			home = filepath.Dir(path)
		}
	}
	args := os.Args[1:]
	if extra, err := os.ReadFile(filepath.Join(home, "extra-args")); err == nil {
		args = append(args, strings.Fields(string(extra))...)
	}
	s := parseSettings(home, args)
	for _, dir := range []string{s.get("vardir"), home} {
		if f, err := os.OpenFile(filepath.Join(dir, "fake-starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
			fmt.Fprintln(f, strings.Join(os.Args[1:], " "))
			f.Close()
		}
	}
	switch s.command {
	case "apply":
		return (&run{settings: s}).apply()
	case "agent":
		return (&run{settings: s}).agent()
	case "facts":
		r := &run{settings: s}
		r.leaveFacts(r.read())
		return 0
	case "pulley_report":
		return sendReports(s)
	case "lookup":
		return lookup(s)
	case "--version":
		fmt.Println("7.23.0")
		return 0
	}
	fmt.Fprintf(os.Stderr, "Error: Unknown Puppet subcommand '%s'\n", s.command)
	return 1
}

package puppettest

import (
	"bufio"
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
		os.Exit(Main())
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
	f, err := os.Open(filepath.Join(dir, "fake-starts"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// Main is the fake's main function. It reads os.Args and returns the exit code.
func Main() int {
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
	case "lookup":
		return lookup(s)
	case "--version":
		fmt.Println("7.23.0")
		return 0
	}
	fmt.Fprintf(os.Stderr, "Error: Unknown Puppet subcommand '%s'\n", s.command)
	return 1
}

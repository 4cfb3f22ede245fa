package cmd_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// shows PAGE COMMAND … runs commands of a page in the home folder of the script, and compares what each prints with what the page
// shows. The page is of the user root; times, keys, sizes and numbers of bytes differ from run to run. A line `…` of the page is
// any number of lines.
func shows(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "shows PAGE COMMAND ...")
	text, err := os.ReadFile(filepath.Join(repository, args[0]))
	ts.Check(err)
	shown := samples(parsePage(args[0], string(text)))
	for _, command := range args[1:] {
		want := shown[command]
		if want == nil {
			ts.Fatalf("%s does not show `%s`", args[0], command)
		}
		cmd := exec.CommandContext(context.Background(), "sh", "-c", strings.ReplaceAll(command, "bin/pulley", "pulley"))
		cmd.Dir, cmd.Env = ts.MkAbs("home"), append(surroundings(ts), "SUDO_USER=root")
		out, err := cmd.CombinedOutput()
		ts.Logf("$ %s\n%s", command, out)
		ts.Check(err)
		got := strings.Split(strings.TrimRight(strings.ReplaceAll(string(out), cmd.Dir, "/root"), "\n"), "\n")
		if !asShown(steady(want), steady(got)) {
			ts.Fatalf("%s shows for `%s`:\n%s\nit prints:\n%s", args[0], command, strings.Join(want, "\n"), strings.Join(got, "\n"))
		}
	}
}

// samples returns the lines that a page shows below each command of its console blocks, at its first place.
func samples(p page) map[string][]string {
	shown := map[string][]string{}
	for _, b := range p.blocks {
		command := ""
		for _, line := range b.lines {
			if next, prompt := strings.CutPrefix(line, "$ "); prompt && b.language == "console" {
				if command = next; shown[command] != nil {
					command = ""
				}
			} else if command != "" {
				shown[command] = append(shown[command], line)
			}
		}
	}
	return shown
}

// unsteady are the parts of an output that differ from run to run.
var unsteady = regexp.MustCompile(`SHA256:[\w+/…]+|tree [0-9a-f]+|list [0-9a-f]+|\d{8}T\d{6}Z-\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d+[smh] ago|[\d.]+ KiB|revision \d+| +`)

func steady(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, strings.TrimSpace(unsteady.ReplaceAllStringFunc(line, func(s string) string {
			if strings.TrimSpace(s) == "" {
				return " "
			}
			return "#"
		})))
	}
	return all
}

// asShown reports whether lines are those of a page, in which `…` stands for any number of lines.
func asShown(want, got []string) bool {
	skip := slices.Index(want, "…")
	if skip < 0 {
		return slices.Equal(want, got)
	}
	rest := want[skip+1:]
	return len(got) >= len(want)-1 && slices.Equal(want[:skip], got[:skip]) && slices.Equal(rest, got[len(got)-len(rest):])
}

package cmd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// A row of docs/json.md: a field, its type, and whether it is optional.
var (
	jsonRow  = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|")
	jsonLink = regexp.MustCompile(`\]\(#(\w+)\)`)
	jsonAll  = regexp.MustCompile(`(?m)^All fields of \[([^\]]+)\]\(#[\w-]+\), and:$`)
)

// documented COMMAND checks that the last JSON output has the fields in docs/json.md for this command: no others, and
// every field that is not optional.
func documented(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "documented COMMAND")
	page, err := os.ReadFile(filepath.Join(repository, "docs", "json.md"))
	ts.Check(err)
	fields := map[string]bool{}
	documentedFields(string(page), "`"+strings.Join(args, " ")+"`", "", false, fields)
	if len(fields) == 0 {
		ts.Fatalf("docs/json.md has no section on %s", strings.Join(args, " "))
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	printed := map[string]bool{}
	for _, name := range fieldNames(v) {
		printed[name] = true
		if _, ok := fields[name]; !ok && !matchesAny(fields, name) {
			ts.Fatalf("docs/json.md does not describe field %s of %s", name, strings.Join(args, " "))
		}
	}
	for name, optional := range fields {
		if !optional && !printed[name] {
			ts.Fatalf("docs/json.md promises field %s of %s, which was not printed", name, strings.Join(args, " "))
		}
	}
}

// documentedFields collects the rows of a section, each with whether it is optional. If a type is a link, it includes
// the rows of the linked section. "All fields of" includes the rows of another command.
func documentedFields(page, heading, prefix string, optional bool, fields map[string]bool) {
	_, section, _ := strings.Cut(page, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if all := jsonAll.FindStringSubmatch(section); all != nil {
		documentedFields(page, "`"+all[1]+"`", prefix, optional, fields)
	}
	for _, row := range jsonRow.FindAllStringSubmatch(section, -1) {
		name, kind := prefix+row[1], row[2]
		may := optional || strings.Contains(kind, "optional")
		if i := strings.LastIndex(name, "."); i > 0 && fields[name[:i]] {
			may = true // a part of an optional object
		}
		fields[name] = may
		if link := jsonLink.FindStringSubmatch(kind); link != nil {
			documentedFields(page, link[1], name+".", may, fields)
		}
	}
}

func matchesAny(fields map[string]bool, name string) bool {
	for pattern := range fields {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Every promise in docs/failures.md, docs/security.md, docs/jobs.md and docs/puppet-server.md names a test that exists. Only a row of what remains possible
// may have none.
func TestFailuresAndAttacksNameTheirTests(t *testing.T) {
	for _, table := range []struct {
		page, heading  string
		cells, atLeast int
	}{{"failures.md", "failure", 5, 80}, {"security.md", "attack", 3, 45}, {"jobs.md", "fault of the old tools", 3, 15}, {"puppet-server.md", "fault", 3, 15}} {
		page, err := os.ReadFile(filepath.Join(repository, "docs", table.page))
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		for _, line := range rowsOf(string(page), table.heading) {
			cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, ""), "|")
			if len(cells) != table.cells+2 {
				t.Errorf("%s: not %d cells: %s", table.page, table.cells, line)
				continue
			}
			rows++
			proofs := proof.FindAllStringSubmatch(cells[table.cells], -1)
			if len(proofs) == 0 && !strings.HasPrefix(line, "| *remains:* ") {
				t.Errorf("%s: no test proves: %s", table.page, line)
			}
			for _, p := range proofs {
				if err := exists(p[1], p[2]); err != nil {
					t.Errorf("%s: %s: %v", table.page, p[0], err)
				}
			}
		}
		if rows < table.atLeast {
			t.Errorf("%s: only %d rows were found", table.page, rows)
		}
	}
}

// rowsOf returns the rows of the tables whose first heading is this word.
func rowsOf(page, heading string) []string {
	var rows []string
	in := false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "| "+heading+" |"):
			in = true
		case !strings.HasPrefix(line, "|"):
			in = false
		case in && !strings.HasPrefix(line, "|---"):
			rows = append(rows, line)
		}
	}
	return rows
}

// proof is `scenario_name`, or `folder: TestName`.
var proof = regexp.MustCompile("`(?:([\\w/.]+): )?([\\w]+)`")

func exists(dir, name string) error {
	if dir == "" {
		found, err := filepath.Glob(filepath.Join("testdata", "*", name+".txtar"))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("there is no scenario %s", name)
		}
		return err
	}
	files, err := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(b), "\nfunc "+name+"(t *testing.T)") {
			return nil
		}
	}
	return fmt.Errorf("no test of that name in %s", dir)
}

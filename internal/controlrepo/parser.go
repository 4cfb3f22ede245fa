package controlrepo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"pulley/internal/child"
	"pulley/internal/clip"
)

// parserDeadline limits the time for all manifests of a repository. Puppet starts in a second and parses hundreds of
// files in another.
const parserDeadline = 2 * time.Minute

// maxParserOutput limits the bytes of Puppet's messages to keep.
const maxParserOutput = 1 << 20

// PuppetValidator checks all manifests with one run of `puppet parser validate`. Command is the name or path of the
// Puppet program. Puppet runs with separate settings, so those of the machine have no effect.
func PuppetValidator(command string) ManifestCheck {
	return func(ctx context.Context, dir string, files []string) []Finding {
		if len(files) == 0 {
			return nil
		}
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return []Finding{cannotParse(err.Error())}
		}
		ctx, cancel := context.WithTimeout(ctx, parserDeadline)
		defer cancel()
		output, err := validateManifests(ctx, command, absolute, files)
		findings := parserFindings(absolute, output)
		var exit *exec.ExitError
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
			return []Finding{cannotParse("there is no " + command)}
		case ctx.Err() != nil:
			return append(findings, cannotParse(fmt.Sprintf("Puppet was stopped: %v", context.Cause(ctx))))
		case err != nil && !errors.As(err, &exit):
			return append(findings, cannotParse(err.Error()))
		case err != nil && Report{Findings: findings}.Errors() == 0:
			return append(findings, cannotParse(fmt.Sprintf("Puppet ended with %v: %s", err, lastLine(output))))
		}
		return findings
	}
}

func cannotParse(why string) Finding {
	return finding(PuppetFailed, "", 0, 0, why)
}

func validateManifests(ctx context.Context, command, dir string, files []string) (output string, err error) {
	private, err := os.MkdirTemp("", "pulley-validate-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	args := []string{"parser", "validate", "--color=false",
		"--confdir", filepath.Join(private, "conf"), "--vardir", filepath.Join(private, "var")}
	for _, f := range files {
		args = append(args, filepath.Join(dir, filepath.FromSlash(f)))
	}
	kept := &clip.Head{Limit: maxParserOutput}
	err = child.Command{
		Path: command, Args: args, Dir: dir, Stdout: kept, Stderr: kept, Grace: 5 * time.Second,
		Env:   append(child.WithoutOwn(os.Environ()), "LC_ALL=C.UTF-8"), // messages in English, files in UTF-8
		Bound: true,
	}.Run(ctx)
	return kept.String(), err
}

var (
	messageForm = regexp.MustCompile(`^(Error|Warning): (.*?) ?\((?:file: (.+?))(?:, line: (\d+))?(?:, column: (\d+))?\)`)
	noiseForm   = regexp.MustCompile(`^Could not parse for environment \S+: `)
)

// parserFindings parses Puppet's messages about files of dir.
func parserFindings(dir, output string) []Finding {
	var out []Finding
	for text := range strings.Lines(output) {
		m := messageForm.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			continue
		}
		rule := ManifestSyntax
		if m[1] == "Warning" {
			rule = ParserWarning
		}
		file := m[3]
		if relative, err := filepath.Rel(dir, file); err == nil {
			file = filepath.ToSlash(relative)
		}
		line, _ := strconv.Atoi(m[4])
		column, _ := strconv.Atoi(m[5])
		out = append(out, finding(rule, file, line, column, noiseForm.ReplaceAllString(m[2], "")))
	}
	return out
}

func lastLine(output string) string {
	output = strings.TrimSpace(output)
	return output[strings.LastIndexByte(output, '\n')+1:]
}

package controlrepo

import (
	"context"
	_ "embed" // judge.rb
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
)

// parserDeadline limits the time for all files of a repository. Puppet starts in a second and parses hundreds of
// files in another.
const parserDeadline = 2 * time.Minute

// maxParserOutput limits the bytes of Puppet's messages to keep.
const maxParserOutput = 1 << 20

// judge is an application of Puppet that judges files as Puppet does when it reads them. It loads no code of the repository.
//
//go:embed judge.rb
var judge []byte

// PuppetValidator lets Puppet judge all files, with one start. Command is the name or path of the Puppet program. Puppet runs with separate
// settings, so those of the machine have no effect.
func PuppetValidator(command string) PuppetCheck {
	return func(ctx context.Context, dir string, files PuppetFiles) []Finding {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return []Finding{cannotParse(err.Error())}
		}
		ctx, cancel := context.WithTimeout(ctx, parserDeadline)
		defer cancel()
		output, judged, err := startJudge(ctx, command, absolute, files)
		findings := append(parserFindings(absolute, output), judged...)
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
			return []Finding{cannotParse("there is no " + command)}
		case ctx.Err() != nil:
			return append(findings, cannotParse(fmt.Sprintf("Puppet was stopped: %v", context.Cause(ctx))))
		case errors.As(err, new(*exec.ExitError)):
			return append(findings, cannotParse(fmt.Sprintf("Puppet ended with %v: %s", err, lastLine(output))))
		case err != nil:
			return append(findings, cannotParse(err.Error()))
		}
		return findings
	}
}

func cannotParse(why string) Finding {
	return finding(PuppetFailed, "", 0, 0, why)
}

// startJudge runs Puppet. It returns the output of Puppet's parser, and the findings about other files.
func startJudge(ctx context.Context, command, dir string, files PuppetFiles) (output string, found []Finding, err error) {
	private, err := os.MkdirTemp("", "pulley-validate-")
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	var job struct {
		Answer    string       `json:"answer"`
		Manifests []PuppetFile `json:"manifests"`
		Hiera     []PuppetFile `json:"hiera"`
		Data      []PuppetFile `json:"data"`
	}
	job.Answer = filepath.Join(private, "answer.json")
	placed := func(all []PuppetFile) []PuppetFile {
		out := []PuppetFile{}
		for _, f := range all {
			f.Path = filepath.Join(dir, filepath.FromSlash(f.File))
			out = append(out, f)
		}
		return out
	}
	job.Manifests, job.Hiera, job.Data = placed(files.Manifests), placed(files.Hiera), placed(files.Data)
	text, err := json.Marshal(job)
	if err != nil {
		return "", nil, err
	}
	app := filepath.Join(private, "modules", "pulley", "lib", "puppet", "application")
	if err := errors.Join(os.MkdirAll(app, 0o700), os.WriteFile(filepath.Join(app, "pulley_validate.rb"), judge, 0o600),
		os.WriteFile(filepath.Join(private, "job.json"), text, 0o600)); err != nil {
		return "", nil, err
	}
	kept := &clip.Head{Limit: maxParserOutput}
	err = child.Command{
		Path: command, Dir: dir, Stdout: kept, Stderr: kept, Grace: 5 * time.Second,
		Args: []string{"pulley_validate", "--color=false", "--confdir", filepath.Join(private, "conf"), "--vardir", filepath.Join(private, "var"),
			"--codedir", filepath.Join(private, "code"), "--environmentpath", filepath.Join(private, "code", "environments"),
			"--basemodulepath", filepath.Join(private, "modules"), filepath.Join(private, "job.json")},
		Env:   append(child.WithoutOwn(os.Environ()), "LC_ALL=C.UTF-8"), // messages in English, files in UTF-8
		Bound: true,
	}.Run(ctx)
	if err != nil {
		return kept.String(), nil, err
	}
	answer, err := bounded.ReadFile(job.Answer, maxAnswer)
	if err == nil {
		found, err = judgements(answer)
	}
	return kept.String(), found, err
}

// maxAnswer limits the findings to read.
const maxAnswer = 16 << 20

// judgements parses the answer of the judge.
func judgements(answer []byte) (found []Finding, err error) {
	var all []struct {
		File, Rule, Problem string
		Line, Column        int
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return nil, fmt.Errorf("cannot read what Puppet found: %w", err)
	}
	for _, f := range all {
		if f.Rule == "internal" { // this Puppet is not as the judge expects it
			found = append(found, finding(NotChecked, f.File, 0, 0, f.Problem))
			continue
		}
		found = append(found, finding(Rule(f.Rule), f.File, f.Line, f.Column, f.Problem))
	}
	return found, nil
}

// askPuppet lets Puppet judge manifests, hiera.yaml and data. Its verdicts replace those made without it.
func (r *reading) askPuppet(ctx context.Context, dir string, manifests []string) {
	if r.opts.Puppet == nil {
		return
	}
	files := PuppetFiles{}
	for _, name := range manifests {
		f := PuppetFile{File: name, Names: r.isNodeCode(name), Site: r.isSite(name)}
		if _, _, inModule := r.layout.module(name); inModule && f.Names && !f.Site {
			f.Namespace = strings.ToLower(r.layout.autoloaded(name))
		}
		files.Manifests = append(files.Manifests, f)
	}
	read := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		module := ""
		if folder, _, ok := r.layout.module(name); ok {
			module = path.Base(folder)
		}
		if path.Base(name) == "hiera.yaml" {
			files.Hiera = append(files.Hiera, PuppetFile{File: name, Module: module})
			read[name] = true
		} else if own, isJSON := r.readByPuppet(name); own {
			if r.environmentData(name) != nil {
				module = ""
			}
			files.Data = append(files.Data, PuppetFile{File: name, Module: module, JSON: isJSON})
			read[name] = true
		}
	}
	if len(read)+len(manifests) == 0 {
		return
	}
	found := r.opts.Puppet(ctx, dir, files)
	for _, f := range found {
		if f.Rule == NotChecked {
			delete(read, f.File)
		}
	}
	if !slices.ContainsFunc(found, func(f Finding) bool { return f.Rule == PuppetFailed }) {
		r.findings = slices.DeleteFunc(r.findings, func(f Finding) bool {
			return read[f.File] && (f.Rule == DataSyntax || f.Rule == DataDate || f.Rule == HieraConfig)
		})
	}
	flawed := map[string]bool{} // Puppet reports the first fault of a hiera.yaml only
	for _, f := range r.findings {
		flawed[f.File] = flawed[f.File] || f.Rule == Interpolation
	}
	for _, f := range found {
		switch {
		case f.Rule == HieraConfig && flawed[f.File]:
		case slices.Contains(namings, f.Rule):
			r.named = append(r.named, f)
		case f.Rule == unknownFunction:
			if f, missing := r.missingFunction(f); missing {
				r.add(f)
			}
		default:
			r.add(f)
		}
	}
}

// unknownFunction is what the judge reports about a function that Puppet itself does not have.
const unknownFunction Rule = "function"

// missingFunction returns the finding about a lookup function that no module has: the detail is its name.
func (r *reading) missingFunction(f Finding) (Finding, bool) {
	if r.functions()[f.detail] || r.mayHave(f.detail) {
		return f, false
	}
	return finding(HieraConfig, f.File, f.Line, f.Column, "Puppet and the modules have no function "+f.detail), true
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

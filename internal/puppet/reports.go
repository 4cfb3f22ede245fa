package puppet

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// reporter is a Puppet application that hands reports to Puppet's report processors.
//
//go:embed reports.rb
var reporter []byte

// Reports are Puppet's report processors that receive the reports of runs, and the setting of one of them.
type Reports struct {
	Processors []string `yaml:"reports"`   // such as http or puppetdb
	URL        string   `yaml:"reporturl"` // of http
}

// processor is the form of the name of a report processor.
var processor = pattern.Lazy(`^[a-z][a-z0-9_]{0,63}$`)

// Check refuses settings with which no report can arrive.
func (r Reports) Check() error {
	if to, err := url.Parse(r.URL); err != nil || r.URL != "" && (to.Host == "" || to.Scheme != "https" && to.Scheme != "http") {
		return fmt.Errorf("reporturl %q is no http or https URL", r.URL)
	}
	for _, name := range r.Processors {
		switch {
		case !processor().MatchString(name):
			return fmt.Errorf("reports has %q, which is no name of a report processor", name)
		case name == "store" || name == "none":
			return fmt.Errorf("reports has %s: `store` would fill the disk, because nothing removes its files, and without the key no processor runs", name)
		case name == "http" && r.URL == "":
			return errors.New("reports has http: give its URL in reporturl")
		}
	}
	return nil
}

// The limits of sending reports. The number of runs on disk limits the reports that wait (agent.Disk).
const (
	sendDeadline = time.Minute // for all reports of one tick
	maxUnsent    = 64 << 10    // of a file of an unsent report, in bytes
)

// reportsOf returns the report processors of a run: those of the node, else those of the environment file of the
// release.
func (p *Puppet) reportsOf(job model.Job) (Reports, error) {
	if job.Code != "" { // it is no run of the release
		return Reports{}, nil
	}
	if len(p.Reports.Processors) > 0 {
		return p.Reports, nil
	}
	name, root, err := environmentFile(job, mentionsPuppet())
	var r Reports
	if part := entry(root, "puppet"); err == nil && part != nil {
		if err = part.Decode(&r); err == nil {
			err = r.Check()
		}
		if err != nil {
			return Reports{}, &ReleaseError{File: name, Err: err}
		}
	}
	return r, err
}

// mentionsPuppet excludes files without the key: they may be no environment files of Pulley.
var mentionsPuppet = pattern.Lazy(`(?m)^["']?puppet["']?\s*:`)

// unsentFile is the file in a run's folder that names the processors which have not taken the run's report.
const unsentFile = "unsent.json"

// unsent is a report that waits.
type unsent struct {
	Run         string   `json:"run"`
	Report      string   `json:"report"`
	Certname    string   `json:"certname"`
	Environment string   `json:"environment"`
	Processors  []string `json:"processors"`
}

// placeReporter puts what the processors need into the folder of a run: the application that calls them, and links to
// their settings on the machine, <processor>.conf and <processor>.yaml.
func (p *Puppet) placeReporter(dir string, r Reports) error {
	if len(r.Processors) == 0 {
		return nil
	}
	apps := filepath.Join(dir, "lib", "puppet", "application")
	err := os.MkdirAll(apps, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(apps, "pulley_report.rb"), reporter, 0o600)
	}
	for _, name := range r.Processors {
		for _, file := range []string{name + ".conf", name + ".yaml"} {
			for _, own := range p.ConfDirs {
				from := filepath.Join(own, file)
				if _, statErr := os.Stat(from); statErr == nil && err == nil {
					err = os.Symlink(from, filepath.Join(dir, "conf", file))
					break
				}
			}
		}
	}
	return err
}

// queueReport marks the report of an ended run as unsent.
func (p *Puppet) queueReport(job model.Job, r model.Result, to Reports) {
	if len(to.Processors) == 0 || job.Noop || r.Report == "" {
		return
	}
	err := unsent{job.ID, r.Report, job.Certname, job.PuppetEnvironment, to.Processors}.save(p.RunDir(job.ID))
	if err != nil {
		p.log().Warn("cannot keep the run's report for Puppet's report processors", "run", job.ID, "error", err)
	}
}

func (u unsent) save(dir string) error {
	path := filepath.Join(dir, unsentFile)
	if len(u.Processors) == 0 {
		return os.Remove(path)
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return atomicfile.WriteVolatile(path, data, 0o600)
}

// SendReports hands the reports of ended runs to Puppet's report processors. Those that fail stay for the next call.
// A failure is a warning: it never concerns the runs.
func (p *Puppet) SendReports(ctx context.Context) {
	waiting := p.unsent()
	if len(waiting) == 0 || p.Reap(ctx) != nil { // the Puppet of a killed agent still sees its run's folder
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendDeadline)
	defer cancel()
	sent, problem, err := p.send(ctx, waiting)
	if err != nil {
		p.log().Warn("cannot send the reports of runs; the next tick sends them", "reports", len(waiting), "error", err)
	}
	for _, u := range waiting {
		left := slices.DeleteFunc(slices.Clone(u.Processors), func(name string) bool { return sent[u.Run+" "+name] })
		if len(left) == len(u.Processors) {
			continue
		}
		u.Processors = left
		if err := u.save(p.RunDir(u.Run)); err != nil {
			p.log().Warn("cannot mark the report of a run as sent", "run", u.Run, "error", err)
		}
	}
	for name, text := range problem {
		p.log().Warn("a report processor of Puppet failed; the next tick sends the reports again", "processor", name, "problem", text)
	}
}

// unsent returns the reports that wait, the oldest run first.
func (p *Puppet) unsent() []unsent {
	paths, _ := filepath.Glob(filepath.Join(p.Dir, "runs", "*", unsentFile)) // the pattern is valid
	var all []unsent
	for _, path := range paths {
		var u unsent
		data, err := bounded.ReadFile(path, maxUnsent)
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err != nil || u.Run != filepath.Base(filepath.Dir(path)) || !certname().MatchString(u.Certname) || !environmentName().MatchString(u.Environment) {
			p.log().Warn("an unsent report is damaged and is left out", "path", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b unsent) int { return cmp.Compare(a.Run, b.Run) })
	return all
}

// send runs Puppet with the settings of the newest run. It returns the pairs "RUN PROCESSOR" that are done, and the
// first problem of each processor.
func (p *Puppet) send(ctx context.Context, waiting []unsent) (sent map[string]bool, problem map[string]string, err error) {
	newest := waiting[len(waiting)-1]
	name, err := p.find()
	if err != nil {
		return nil, nil, err
	}
	dir := p.RunDir(newest.Run)
	vanish, err := p.appear(newest.Run)
	if err != nil {
		return nil, nil, err
	}
	defer vanish()
	list := filepath.Join(dir, "send.json")
	data, err := json.Marshal(waiting)
	if err == nil {
		err = os.WriteFile(list, data, 0o600)
	}
	if err != nil {
		return nil, nil, err
	}
	job := model.Job{ID: newest.Run, Identity: model.Identity{Certname: newest.Certname, PuppetEnvironment: newest.Environment}}
	if _, err := os.Stat(p.environmentDir(job)); err != nil { // the release is no longer on disk, and http needs none
		if err := errors.Join(os.RemoveAll(p.environmentDir(job)), os.Mkdir(p.environmentDir(job), 0o700)); err != nil {
			return nil, nil, err
		}
	}
	out, err := execCommand(ctx, environ(), name, append([]string{"pulley_report"}, append(p.settings(job), list)...)...)
	if ctx.Err() != nil {
		err = fmt.Errorf("the report processors took longer than %s", sendDeadline)
	}
	sent, problem = parseSent(out)
	if err != nil {
		err = fmt.Errorf("%w%s", err, lastWords(out))
	}
	return sent, problem, err
}

// parseSent reads the lines of the application. Its other output belongs to the processors.
func parseSent(text string) (sent map[string]bool, problem map[string]string) {
	sent, problem = map[string]bool{}, map[string]string{}
	for line := range strings.Lines(text) {
		var result struct{ Run, Processor, Problem string }
		line, ours := strings.CutPrefix(line, "pulley-report ")
		if !ours || json.Unmarshal([]byte(line), &result) != nil {
			continue
		}
		if result.Problem == "" {
			sent[result.Run+" "+result.Processor] = true
		} else if problem[result.Processor] == "" {
			problem[result.Processor] = clip.Line(result.Problem, 300)
		}
	}
	return sent, problem
}

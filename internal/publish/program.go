package publish

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// Programs are builds of one version of pulley-agent, by platform: GOOS/GOARCH.
type Programs struct {
	Version string
	Files   map[string][]byte
}

// ErrNoVersion reports that none of the files given to ReadPrograms runs on this machine and no version was given.
var ErrNoVersion = fmt.Errorf("no file runs on this machine (%s/%s), and there is no version", runtime.GOOS, runtime.GOARCH)

// ReadPrograms reads builds of pulley-agent. It runs the build for this machine with --version and compares the output
// with the given version, or uses it as the version.
func ReadPrograms(ctx context.Context, files []string, version string) (Programs, error) {
	p := Programs{Version: version, Files: map[string][]byte{}}
	from := map[string]string{}
	for _, file := range files {
		if err := p.read(ctx, file, from); err != nil {
			return Programs{}, fmt.Errorf("cannot publish %s: %w", file, err)
		}
	}
	if p.Version == "" {
		return Programs{}, ErrNoVersion
	}
	return p, nil
}

func (p *Programs) read(ctx context.Context, file string, from map[string]string) error {
	platform, err := platformOf(file)
	if err != nil {
		return err
	}
	if other, ok := from[platform]; ok {
		return fmt.Errorf("it is for %s, and so is %s", platform, other)
	}
	from[platform] = file
	if p.Files[platform], err = bounded.ReadFile(file, content.MaxProgramBytes); err != nil {
		return err
	}
	if platform != runtime.GOOS+"/"+runtime.GOARCH {
		return nil
	}
	reported, err := versionOf(ctx, file)
	if err != nil {
		return err
	}
	if p.Version == "" {
		if _, err := release.ParseVersion(reported); err != nil {
			return fmt.Errorf("it reports version %q, which is not like 1.4.0\nbuild it with a version: make build VERSION=1.4.0", reported)
		}
		p.Version = reported
	}
	if p.Version != reported { // nodes report the program's own version in their status
		return fmt.Errorf("it reports version %q, not %s\nleave out --version, or build it with that one: make build VERSION=%s", reported, p.Version, p.Version)
	}
	return nil
}

// platformOf returns the platform that a program was built for, as the Go linker recorded it.
func platformOf(file string) (string, error) {
	info, err := buildinfo.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err != nil {
		return "", fmt.Errorf("it is not a program built by Go: %w", err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] == "" || settings["GOARCH"] == "" {
		return "", errors.New("it does not record its platform")
	}
	return settings["GOOS"] + "/" + settings["GOARCH"], nil
}

// versionOf runs the program to get its version.
func versionOf(ctx context.Context, file string) (string, error) {
	const deadline = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	out, err := child.Command{Path: path, Args: []string{"--version"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}.Output(ctx, 64<<10)
	if err != nil {
		return "", fmt.Errorf("cannot run it with --version: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(line, "pulley-agent version ")
	if !ok {
		return "", fmt.Errorf("it is not pulley-agent: --version prints %q", clip.Line(line, 200))
	}
	return release.PlainVersion(strings.TrimSpace(version)), nil
}

// ProgramResult is the result of Program.
type ProgramResult struct {
	Created  bool
	Stored   int64 // bytes in etcd
	Signed   bool
	SignedBy string // fingerprint of the key if its signature existed already
}

// PublishedProgram reports whether a version exists with these programs. Other programs are an error.
func PublishedProgram(ctx context.Context, s *release.Releases, p Programs) (bool, error) {
	record := release.AgentRelease{Version: p.Version, Platforms: map[string]content.Program{}}
	for platform, program := range p.Files {
		packed, err := content.PackProgram(program, func(string, []byte) error { return nil })
		if err != nil {
			return false, err
		}
		record.Platforms[platform] = packed
	}
	return s.PublishedAgent(ctx, record)
}

// Program publishes a version of pulley-agent. If the same programs are published under this version already, it only
// adds a missing signature.
func Program(ctx context.Context, s *release.Releases, p Programs, w Wish, r Reporter) (_ ProgramResult, err error) {
	mark, err := s.BeginPublish(ctx, w.By)
	if err != nil {
		return ProgramResult{}, err
	}
	defer func() {
		if closing := mark.Close(); closing != nil { // does not change the result
			r.Note(Note{Code: MarkNotRemoved, Cause: closing})
		}
	}()
	record := release.AgentRelease{
		Version: p.Version, Platforms: map[string]content.Program{}, Message: model.Prose(w.Message), Author: w.By, At: w.At.UTC().Truncate(time.Second),
	}
	done := ProgramResult{Signed: w.Key != nil}
	for platform, program := range p.Files {
		subject := p.Version + " for " + platform
		r.Progress(Progress{Step: Packing, Subject: subject})
		packed, err := content.PackProgram(program, func(hash string, b []byte) error {
			r.Progress(Progress{Step: Publishing, Subject: subject})
			_, err := mark.PutObject(ctx, hash, b)
			return err
		})
		if err != nil {
			return done, err
		}
		record.Platforms[platform] = packed
		done.Stored += packed.Stored()
	}
	r.Pause()
	if done.Created, err = s.PutAgent(ctx, mark, record, w.sign()); err != nil || done.Created || w.Key == nil {
		return done, err
	}
	existing, err := s.Agent(ctx, p.Version)
	if err != nil {
		return done, err
	}
	if done.SignedBy = w.Key.Among(existing.Signatures); done.SignedBy != "" {
		done.Signed = false
		return done, nil
	}
	return done, retry(func() error { return s.SignAgent(ctx, p.Version, w.sign()) })
}

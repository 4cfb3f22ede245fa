package source

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The answers of a classifier must be part of the release, all of them or none, and the operator's folder stays as it is.
func TestClassifierAnswersAreAdded(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"hiera.yaml": "version: 5\n"})
	script := filepath.Join(t.TempDir(), "enc")
	classify := func(body string, mutate func(*Options)) (*Folder, error) {
		t.Helper()
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
		o := Options{Modules: NoTool, Classifier: Classifier{
			Command: []string{script, "--for"}, Folder: "external_nodes",
			Nodes: func(string) (map[string]string, error) {
				return map[string]string{"web1": "dev", "web2": "dev", "db1": "production", "db2": "production", "x.example.com": "dev"}, nil
			},
			Check: func(answer []byte) (string, error) {
				if !strings.HasPrefix(string(answer), "classes:") {
					return "", errors.New("it is not a mapping")
				}
				return strings.TrimSpace(string(answer[strings.LastIndexByte(string(answer), ' '):])), nil
			},
		}}
		if mutate != nil {
			mutate(&o)
		}
		before := snapshot(t, dir)
		f, err := Open(t.Context(), dir, o)
		if after := snapshot(t, dir); !slices.Equal(after, before) {
			t.Errorf("the folder changed:\n%v\n%v", before, after)
		}
		return f, err
	}
	f, err := classify(`echo "classes: [base] # $1 $2, environment: dev"`, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := os.ReadFile(filepath.Join(f.Root, "external_nodes/x.example.com.yaml"))
	if err != nil || string(got) != "classes: [base] # --for x.example.com, environment: dev\n" || !slices.Contains(published(t, f), "external_nodes/db2.yaml") {
		t.Errorf("published %v; %q", published(t, f), got)
	}
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "2 of 5 nodes into another environment (db1: dev, db2: dev)") {
		t.Errorf("notes %q", f.Notes)
	}
	if len(f.Overlays) != 1 || f.Overlays[0].Files != 5 || f.Overlays[0].Source != "classifier "+script {
		t.Errorf("overlays %+v", f.Overlays)
	}
	begun := time.Now()
	for body, want := range map[string]string{
		"echo oops":                     "it is not a mapping\nrun `" + script + " --for ",
		"echo no such host >&2; exit 3": "exit status 3: no such host",
		"yes":                           "it wrote more than 1048576 bytes",
		"sleep 60":                      "it took longer than 2s",
	} {
		f, err := classify(body, func(o *Options) { o.Deadline = 2 * time.Second })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "cannot classify ") {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	write(t, dir, map[string]string{"external_nodes/web1.yaml": "classes: []\n"})
	if _, err := classify("echo classes: []", nil); err == nil || !strings.Contains(err.Error(), "the folder contains external_nodes/web1.yaml") {
		t.Errorf("two answers: %v", err)
	}
	if _, err := classify("echo classes: []", func(o *Options) {
		o.Classifier.Nodes = func(string) (map[string]string, error) { return nil, nil }
	}); err == nil || !strings.Contains(err.Error(), "name no node") {
		t.Errorf("no nodes: %v", err)
	}
}

//go:build e2e

package cli

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The rules for logrotate in docs/operations.md must lose no line while a service writes, and must end the growth of each file.
func TestLogrotateLosesNoLine(t *testing.T) {
	page := read(t, "../../docs/operations.md")
	rules := regexp.MustCompile("(?s)```\n(/var/log/pulley/.*?)```").FindStringSubmatch(page)
	if rules == nil {
		t.Fatal("docs/operations.md has no rules for logrotate")
	}
	dir := t.TempDir()
	file, config := filepath.Join(dir, "serve.log"), filepath.Join(dir, "logrotate.conf")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(rules[1], "/var/log/pulley", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := LogFlags{File: file, Level: "info", Format: "text"}.Open(&Env{})
	if err != nil {
		t.Fatal(err)
	}
	const writers, rotations = 4, 5
	var done sync.WaitGroup
	stop, counts := make(chan struct{}), [writers]int{}
	for w := range writers {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					log.Info("line", "writer", w, "number", counts[w])
					counts[w]++
				}
			}
		})
	}
	for range rotations {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // an empty file is not rotated
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				break
			} else if time.Now().After(end) {
				t.Fatal("the writers write nothing: ", err)
			}
		}
		if out, err := exec.Command("logrotate", "--force", "--state", filepath.Join(dir, "state"), config).CombinedOutput(); err != nil {
			t.Errorf("logrotate: %v\n%s", err, out)
		}
	}
	close(stop)
	done.Wait()

	seen, total := map[string]bool{}, 0
	files, err := filepath.Glob(file + "*")
	if err != nil || len(files) != rotations+1 {
		t.Fatalf("the files are %q, %v", files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var in io.Reader = f
		if strings.HasSuffix(name, ".gz") {
			if in, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			_, about, _ := strings.Cut(line, "msg=line ")
			seen[strings.TrimSpace(about)] = true
		}
	}
	for w, n := range counts {
		total += n
		for i := range n {
			if !seen[fmt.Sprintf("writer=%d number=%d", w, i)] {
				t.Fatalf("line %d of writer %d is in none of %q", i, w, files)
			}
		}
	}
	t.Logf("%d lines in %d files", total, len(files))
}

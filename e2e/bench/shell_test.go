//go:build bench

package bench

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// shells are the shells that pulley prints completions for: a command that starts one, and the lines that prepare it.
var shells = []struct {
	name, command string
	lines         []string
}{
	{"bash", "bash --noprofile --norc -i", []string{
		"source /usr/share/bash-completion/bash_completion; source <(pulley completion bash)",
		"bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 1000'; bind 'set page-completions off'",
	}},
	{"zsh", "zsh -f -i", []string{
		"autoload -Uz compinit; compinit -u -D; source <(pulley completion zsh); compdef _pulley pulley", "LISTMAX=1000",
	}},
	{"fish", "fish --no-config -i", []string{"pulley completion fish | source"}},
}

// drawing are the sequences with which a shell moves and colours.
var drawing = regexp.MustCompile(`\x1b(\[[0-9;?<>=]*[a-zA-Z]|\([A-B0]|[=>78])`)

// keys is a shell on a terminal that somebody types into.
type keys struct {
	t    *testing.T
	in   io.Writer
	read chan []byte
}

// startShell starts a shell. Its programs come from the folder of bin first.
func startShell(t *testing.T, bin, command string, environ ...string) *keys {
	t.Helper()
	cmd := exec.Command("script", "-qec", "stty cols 120 rows 40; exec "+command, "/dev/null")
	cmd.Env = append(append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "TERM=xterm", "PS1=", "HOME="+t.TempDir()), environ...)
	cmd.Dir = t.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k := &keys{t, in, make(chan []byte, 1000)}
	go func() {
		defer close(k.read)
		for {
			part := make([]byte, 4096)
			n, err := out.Read(part)
			if n > 0 {
				k.read <- part[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return k
}

// types types a text, and returns the time until the terminal shows another.
func (k *keys) types(text, shows string) time.Duration {
	k.t.Helper()
	for drained := false; !drained; {
		select {
		case <-k.read:
		default:
			drained = true
		}
	}
	began := time.Now()
	if _, err := io.WriteString(k.in, text); err != nil {
		k.t.Fatal(err)
	}
	var shown []byte
	for end := time.After(20 * time.Second); ; {
		select {
		case part, ok := <-k.read:
			if shown = append(shown, part...); bytes.Contains(drawing.ReplaceAll(shown, nil), []byte(shows)) {
				return time.Since(began)
			}
			if !ok {
				k.t.Fatalf("the shell ended before it showed %q:\n%q", shows, shown)
			}
		case <-end:
			k.t.Fatalf("after %q the shell does not show %q:\n%q", text, shows, shown)
		}
	}
}

// printShells measures the time from Tab until a shell shows the suggestions: verbs, which need no etcd, and nodes.
func printShells(t *testing.T, bin, endpoint string, nodes int) {
	for _, s := range shells {
		if _, err := exec.LookPath(s.name); err != nil {
			t.Fatalf("%s is missing: install bash, bash-completion, zsh and fish", s.name)
		}
		k := startShell(t, bin, s.command, "PULLEY_ENDPOINTS="+endpoint, "PULLEY_ENVIRONMENT=dev")
		n := 0
		ready := func(line string) {
			n++
			k.types(fmt.Sprintf("%s; echo is'%d'done\n", line, n), fmt.Sprintf("is%ddone", n))
		}
		for _, line := range s.lines {
			ready(line)
		}
		for _, c := range []struct{ what, types, shows string }{
			{"a verb", "pulley re", "restore"}, {"a node", "pulley explain compute50", "compute500"},
		} {
			var took []float64
			for range finds {
				k.types(c.types, c.types)
				took = append(took, k.types("\t", c.shows).Seconds())
				k.types("\x15", "")
				ready("true")
			}
			fmt.Printf("| %d | completion of %s in %s | %.3f | | | |\n", nodes, c.what, s.name, percentile(took, 50))
		}
	}
}

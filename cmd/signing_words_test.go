package cmd_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// signWith NAME|nobody selects the operators' signing key from here on. The first use creates the key: NAME and
// NAME.pub.
func signWith(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "sign-with NAME|nobody")
	if args[0] == "nobody" {
		ts.Setenv("PULLEY_SIGN_KEY", "")
		return
	}
	publicKey(ts, args[0])
	ts.Setenv("PULLEY_SIGN_KEY", ts.MkAbs(args[0]))
}

// publicKey returns a person's public key, in the format of its file.
func publicKey(ts *testscript.TestScript, name string) string {
	file := ts.MkAbs(name)
	if _, err := os.Stat(file); err != nil {
		ts.Check(ts.Exec("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file))
	}
	return strings.TrimSpace(ts.ReadFile(file + ".pub"))
}

var person = regexp.MustCompile(`\{(\w+)\}`)

// signers NODE [LINE …] writes a node's list of allowed signers. {NAME} stands for that person's public key.
func signers(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "signers NODE [LINE ...]")
	writeKeys(ts, args[0], "allowed_signers", args[1:])
}

// revoked NODE [LINE …] writes a node's list of revoked keys.
func revoked(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "revoked NODE [LINE ...]")
	writeKeys(ts, args[0], "revoked_signers", args[1:])
}

func writeKeys(ts *testscript.TestScript, node, name string, lines []string) {
	text := person.ReplaceAllStringFunc(strings.Join(append(lines, ""), "\n"), func(s string) string { return publicKey(ts, s[1:len(s)-1]) })
	dir := ts.MkAbs(node + "/etc/pulley")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// keep KEY FILE stores the present value of a key in a file.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "keep KEY FILE")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(valueOf(ts, args[0])), 0o600))
}

// replay KEY FILE writes a stored value to etcd.
func replay(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "replay KEY FILE")
	put(ts, false, []string{args[0], ts.ReadFile(args[1])})
}

// change KEY OLD NEW replaces the first occurrence of a text in a value.
func change(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 3, "change KEY OLD NEW")
	value := valueOf(ts, args[0])
	if !strings.Contains(value, args[1]) {
		ts.Fatalf("%s has no %q:\n%s", args[0], args[1], value)
	}
	put(ts, false, []string{args[0], strings.Replace(value, args[1], args[2], 1)})
}

// flip KEY changes one character of the last signature under a value.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "flip KEY")
	value := []byte(valueOf(ts, args[0]))
	at := strings.LastIndex(string(value), "\n-----END SSH SIGNATURE-----") - 20
	if at < 0 {
		ts.Fatalf("%s is not signed:\n%s", args[0], value)
	}
	was := value[at]
	if value[at] = 'A'; was == 'A' {
		value[at] = 'B'
	}
	put(ts, false, []string{args[0], string(value)})
}

func valueOf(ts *testscript.TestScript, key string) string {
	resp, err := serverOf(ts).Client().Get(context.Background(), key)
	ts.Check(err)
	if len(resp.Kvs) != 1 {
		ts.Fatalf("there is no key %s", key)
	}
	return string(resp.Kvs[0].Value)
}

//go:build e2e

package trust

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// signEnv makes this test binary sign with a key and report the result, so that it can run on a terminal.
const signEnv = "PULLEY_TEST_SIGN_WITH"

func TestMain(m *testing.M) {
	if file := os.Getenv(signEnv); file != "" {
		_, err := Key{File: file}.Sign(context.Background(), Release, []byte(record))
		fmt.Printf("signing ended: %v\n", err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// An operator types the passphrase in the terminal of pulley. A child that may not read from the terminal would hang.
func TestPassphraseIsReadFromTerminal(t *testing.T) {
	onlySoftly(t)
	file := filepath.Join(t.TempDir(), "id")
	mustKeygen(t, "-q", "-t", "ed25519", "-N", "correct horse", "-f", file)
	for typed, want := range map[string]string{"correct horse": "signing ended: <nil>", "battery staple": "signing ended: cannot sign with"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "script", "-qec", os.Args[0], os.DevNull)
		cmd.Env = append(os.Environ(), signEnv+"="+file)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatalf("cannot run script: %v\ninstall the package bsdutils", err)
		}
		var said strings.Builder
		asked := false
		for b := make([]byte, 256); ; {
			n, err := out.Read(b)
			said.Write(b[:n])
			if !asked && strings.Contains(said.String(), "Enter passphrase") {
				asked = true
				fmt.Fprintln(stdin, typed)
			}
			if err != nil || strings.Contains(said.String(), "signing ended") {
				break
			}
		}
		stdin.Close()
		rest, _ := io.ReadAll(out)
		said.Write(rest)
		if err := cmd.Wait(); err != nil || !asked || !strings.Contains(said.String(), want) || strings.Contains(said.String(), typed) {
			t.Errorf("%q: asked %t, %v:\n%s", typed, asked, err, said.String())
		}
	}
}

// keygen runs the real ssh-keygen, the counterpart in these tests.
func keygen(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ssh-keygen", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("cannot run ssh-keygen: %v\ninstall the package openssh-client", err)
	}
	return string(out), err
}

func mustKeygen(t *testing.T, args ...string) {
	t.Helper()
	if out, err := keygen(t, nil, args...); err != nil {
		t.Fatalf("ssh-keygen %q: %v\n%s", args, err, out)
	}
}

func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onlySoftly hides the user's ssh-agent and askpass from the tests.
func onlySoftly(t *testing.T) {
	for _, name := range []string{"SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY"} {
		t.Setenv(name, "")
	}
}

// For every type of key, Pulley and ssh-keygen must read each other's signatures.
func TestSignaturesOfEveryKeyGoBothWays(t *testing.T) {
	onlySoftly(t)
	for _, kind := range [][]string{{"ed25519"}, {"ecdsa", "-b", "256"}, {"ecdsa", "-b", "384"}, {"ecdsa", "-b", "521"}, {"rsa", "-b", "2048"}, {"rsa", "-b", "3072"}} {
		t.Run(strings.Join(kind, ""), func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "id")
			mustKeygen(t, append([]string{"-q", "-N", "", "-f", file, "-t"}, kind...)...)
			allowed := "alice@production " + read(t, file+".pub")
			signatures, err := Key{File: file}.Sign(t.Context(), Release, []byte(record))
			if err != nil {
				t.Fatal(err)
			}
			if by, err := mustParse(t, allowed, "").Verify(Release, "production", []byte(record), signatures, now); err != nil || by != "alice" {
				t.Errorf("by %q: %v", by, err)
			}
			// As an operator does manually, from the stored value.
			write(t, dir, "value", Join([]byte(record), signatures))
			write(t, dir, "allowed", []byte(allowed))
			script := `head -n1 value > r && tail -n+2 value > r.sig && ssh-keygen -Y verify -f allowed -I alice@production -n pulley-release -s r.sig < r`
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `Good "pulley-release" signature for alice@production`) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	keys := keysOfAllTypes(t)
	keys["rsa-3072"] = signerOf(t, rsaKey(t, 3072))
	for name, key := range keys {
		t.Run("made here "+name, func(t *testing.T) {
			dir := t.TempDir()
			sig := write(t, dir, "r.sig", sign(t, key, Data, record))
			allowed := write(t, dir, "allowed", []byte("alice@dev "+text(key.PublicKey())+"\n"))
			if out, err := keygen(t, []byte(record+"\n"), "-Y", "verify", "-f", allowed, "-I", "alice@dev", "-n", "pulley-data", "-s", sig); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if _, err := mustParse(t, read(t, allowed), "").Verify(Data, "dev", []byte(record), []byte(read(t, sig)), now); err != nil {
				t.Error(err)
			}
		})
	}
}

// Auditors use ssh-keygen -Y verify. For each list, environment and time, both must have the same result.
func TestVerifyAgreesWithOpenSSH(t *testing.T) {
	dir := t.TempDir()
	alice, bob := softKey(t, 1), softKey(t, 2)
	a, b := text(alice.PublicKey()), text(bob.PublicKey())
	lists := []string{
		"",
		"# nobody\n",
		"alice@production " + a,
		"alice@production,alice@dev " + a + " a comment",
		"alice@* " + a,
		"alice@*,!alice@production " + a,
		"!alice@dev,alice@* " + a,
		"alice@pro* " + a,
		"alice@d?v\t" + a,
		"alice@dev,!*@dev " + a,
		"alice@production,bob@dev " + a,
		"bob@production " + a,
		"bob@* " + b,
		"bob@* " + b + "\nalice@dev " + a,
		"alice@production " + a + "\r\n\r\nalice@dev " + a + "\r\n",
		`"alice@dev" ` + a,
		`alice@* namespaces="pulley-release" ` + a,
		`alice@* namespaces="pulley-*,!pulley-release" ` + a,
		`alice@* namespaces="git" ` + a,
		`alice@* NAMESPACES="git,pulley-r?lease",Valid-Before="20260701Z" ` + a,
		`alice@* valid-before="20260615Z" ` + a,
		`alice@* valid-before="20260616Z" ` + a,
		`alice@* valid-before="202606160000Z" ` + a,
		`alice@* valid-before="20260616000001z" ` + a,
		`alice@* valid-after="20260615120001Z" ` + a,
		`alice@* valid-after="20260615120000Z",valid-before="20260615120001Z" ` + a,
		`alice@* valid-after="20251101Z" ` + a,
		`alice@* valid-after="202603290130UTC",valid-before="202610250130utc" ` + a,
		`alice@* valid-before="20260101Z" ` + a + "\nalice@dev " + a,
		`alice@dev valid-before="20260101Z" ` + a + "\n" + `alice@production valid-after="20260101Z" ` + a,
	}
	revoked := map[string]string{"": "", "alice": "# gone\n" + a + " alice\n", "bob": b + "\n"}
	t.Setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3") // times must not depend on it
	var times []time.Time
	for _, at := range []string{"2025-10-31T23:59:59Z", "2026-03-29T01:30:00Z", "2026-03-29T01:29:59Z", "2026-06-15T12:00:00Z", "2026-06-15T12:00:01Z",
		"2026-06-16T00:00:00Z", "2026-06-16T00:00:01Z", "2026-10-25T01:30:00Z", "2026-10-25T01:30:01Z"} {
		then, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, then)
	}
	signatures := sign(t, alice, Release, record)
	sig := write(t, dir, "r.sig", signatures)
	asked, accepted := 0, 0
	for i, list := range lists {
		file := write(t, dir, fmt.Sprint("allowed", i), []byte(list))
		for who, gone := range revoked {
			s, err := ParseSigners([]byte(list), []byte(gone))
			if err != nil {
				t.Fatalf("%q: %v", list, err)
			}
			revokedFile := write(t, dir, "revoked-"+who, []byte(gone))
			at := times
			if !strings.Contains(list, "valid") || who != "" {
				at = []time.Time{now}
			}
			for _, environment := range []string{"dev", "production"} {
				for _, then := range at {
					by, err := s.Verify(Release, environment, []byte(record), signatures, then)
					var theirs []string
					for _, name := range []string{"alice", "bob"} {
						_, refusal := keygen(t, []byte(record+"\n"), "-Y", "verify", "-f", file, "-r", revokedFile, "-I", name+"@"+environment,
							"-n", string(Release), "-O", "verify-time="+formatTime(then), "-s", sig)
						if refusal == nil {
							theirs = append(theirs, name)
						}
					}
					asked++
					if err == nil {
						accepted++
					}
					if (err == nil) != (len(theirs) > 0) || err == nil && !slices.Contains(theirs, by) {
						t.Errorf("%q without %q in %s at %s: here %q %v, there %q", list, who, environment, then, by, err, theirs)
					}
				}
			}
		}
	}
	if accepted < 50 || asked-accepted < 50 {
		t.Errorf("of %d questions %d had yes for an answer", asked, accepted)
	}
}

// OpenSSH interprets a cert-authority line and Pulley does not. It must be an error and not be skipped.
func TestCertificatesAreRefused(t *testing.T) {
	onlySoftly(t)
	dir := t.TempDir()
	ca, user := filepath.Join(dir, "ca"), filepath.Join(dir, "user")
	mustKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", ca)
	mustKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", user)
	mustKeygen(t, "-q", "-s", ca, "-I", "user", "-n", "alice@dev", user+".pub")
	if _, err := ParseSigners([]byte("*@dev,alice@dev cert-authority "+read(t, ca+".pub")), nil); err == nil {
		t.Error("an authority was accepted")
	}
	if _, err := (Key{File: user + "-cert.pub"}).Sign(t.Context(), Release, []byte(record)); err == nil || !strings.Contains(err.Error(), "no node would accept it: certificates are not supported") {
		t.Errorf("a certificate signs: %v", err)
	}
}

// Many operators sign with a key that only an agent holds.
func TestAgentSigns(t *testing.T) {
	onlySoftly(t)
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "id"), filepath.Join(dir, "agent")
	mustKeygen(t, "-q", "-t", "ed25519", "-N", "", "-f", file)
	agent := exec.CommandContext(t.Context(), "ssh-agent", "-D", "-a", socket)
	if err := agent.Start(); err != nil {
		t.Fatalf("cannot run ssh-agent: %v\ninstall the package openssh-client", err)
	}
	defer func() {
		agent.Process.Kill()
		_ = agent.Wait()
	}()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the agent never listened")
		}
	}
	t.Setenv("SSH_AUTH_SOCK", socket)
	if out, err := exec.CommandContext(t.Context(), "ssh-add", "-q", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	signatures, err := Key{File: file + ".pub"}.Sign(t.Context(), Rollback, []byte(record))
	if err != nil {
		t.Fatal(err)
	}
	if by, err := mustParse(t, "alice@dev "+read(t, file+".pub"), "").Verify(Rollback, "dev", []byte(record), signatures, now); err != nil || by != "alice" {
		t.Errorf("by %q: %v", by, err)
	}
	t.Setenv("SSH_AUTH_SOCK", "")
	if _, err := (Key{File: file + ".pub"}).Sign(t.Context(), Rollback, []byte(record)); err == nil || !strings.Contains(err.Error(), "neither an ssh-agent nor the file beside it has the private one") {
		t.Errorf("without an agent: %v", err)
	}
}

// ssh-keygen reads the passphrase of a key, here by SSH_ASKPASS.
func TestSigningAsksForPassphrase(t *testing.T) {
	onlySoftly(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "id")
	mustKeygen(t, "-q", "-t", "ed25519", "-N", "correct horse", "-f", file)
	t.Setenv("SSH_ASKPASS_REQUIRE", "force")
	askpass := filepath.Join(dir, "askpass")
	t.Setenv("SSH_ASKPASS", askpass)
	for answer, why := range map[string]string{"correct horse": "", "battery staple": "passphrase"} {
		if err := os.WriteFile(askpass, []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Key{File: file}.Sign(t.Context(), Release, []byte(record))
		if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

// A new key can sign at once, and other users cannot read it.
func TestCreateMakesAKeyThatSigns(t *testing.T) {
	onlySoftly(t)
	k := Key{File: filepath.Join(t.TempDir(), "id")}
	if err := k.Create(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	signatures, err := k.Sign(t.Context(), Release, []byte(record))
	if err != nil {
		t.Fatal(err)
	}
	public, err := parsePublicKey([]byte(read(t, k.File+".pub")))
	if err != nil {
		t.Fatal(err)
	}
	list, err := allow(nil, public, Permission{Name: "alice", Environments: []string{"dev"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mustParse(t, string(list), "").Verify(Release, "dev", []byte(record), signatures, now); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(k.File, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Sign(t.Context(), Release, []byte(record)); err == nil || !strings.Contains(err.Error(), "others may read it (mode 0644)\nrun: chmod 600 "+k.File) {
		t.Errorf("a key that all can read: %v", err)
	}
	if err := os.Chmod(k.File, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.File, []byte("spoiled"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Sign(t.Context(), Release, []byte(record)); err == nil || !strings.HasPrefix(err.Error(), "cannot sign with "+k.File+": ") {
		t.Errorf("a damaged key: %v", err)
	}
}

// Pulley refuses weak keys that OpenSSH refuses, and also some RSA keys that OpenSSH accepts.
func TestWeakKeysAgainstOpenSSH(t *testing.T) {
	dir := t.TempDir()
	verify := func(key ssh.Signer, block []byte) error {
		sig := write(t, dir, "r.sig", armor(block))
		allowed := write(t, dir, "allowed", []byte("alice@dev "+text(key.PublicKey())+"\n"))
		_, err := keygen(t, []byte(record+"\n"), "-Y", "verify", "-f", allowed, "-I", "alice@dev", "-n", string(Release), "-s", sig)
		return err
	}
	big := rsaKey(t, 2048)
	if verify(signerOf(t, big), rsaSHA1(t, big)) == nil {
		t.Error("OpenSSH takes SHA-1 with RSA")
	}
	if verify(softKey(t, 1), insideLonger(t, softKey(t, 1))) == nil {
		t.Error("OpenSSH takes a signature with a byte behind it")
	}
	block := func(signatures []byte) []byte {
		b, _ := pem.Decode(signatures)
		return b.Bytes
	}
	// Stricter than OpenSSH on purpose: small RSA keys, and hardware keys without a touch.
	small := signerOf(t, rsaKey(t, 1024))
	if err := verify(small, block(sign(t, small, Release, record))); err != nil {
		t.Errorf("OpenSSH refuses 1024 bits too: %v", err)
	}
	if err := verify(newSK(0), block(sign(t, newSK(0), Release, record))); err != nil {
		t.Errorf("OpenSSH refuses an untouched key too: %v", err)
	}
}

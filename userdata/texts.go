package userdata

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// publicKey is what makes a line one of an allowed_signers file: a type of key and, as base64, the key itself.
var publicKey = regexp.MustCompile(`(^|\s)(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+\s+[A-Za-z0-9+/]{16,}=*(\s|$)`)

// allowedSigners returns the file's lines that count, without comments. Whether they can be read is for the agent to say;
// here a line has to look like one, so that neither a private key nor the end of a here-document gets into the script.
func allowedSigners(text []byte) (string, error) {
	var out strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !publicKey.MatchString(line) || strings.HasPrefix(line, "-----") {
			return "", fmt.Errorf("line %d of the allowed signers is not like alice@production ssh-ed25519 AAAA…", n)
		}
		if err := oneLine("a line of the allowed signers", strings.ReplaceAll(line, "\t", " ")); err != nil {
			return "", err
		}
		out.WriteString(line + "\n")
	}
	if len(text) > 0 && out.Len() == 0 {
		return "", errors.New("the file of allowed signers names none: the node would refuse everything")
	}
	return out.String(), nil
}

// certificates returns the PEM text in its canonical form: certificates only, without whatever stood around them.
func certificates(text []byte) (string, error) {
	var out strings.Builder
	found := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return "", fmt.Errorf("the CA file holds a %s; only certificates may be in userdata", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("cannot read the CA certificate: %w", err)
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		found++
	}
	// pem.Decode passes over what it can't read: a cut certificate would be missing without a word.
	if len(text) > 0 && (found == 0 || found != bytes.Count(text, []byte("-----BEGIN "))) {
		return "", errors.New("the CA file is not made of whole PEM certificates")
	}
	return out.String(), nil
}

// stepText refuses what one form would write down otherwise than another, and what Linux would not start.
func stepText(name string, text []byte) error {
	switch {
	case !bytes.HasPrefix(text, []byte("#!/")):
		return fmt.Errorf("step %s does not begin with #! and a program: the machine could not start it", name)
	case !utf8.Valid(text) || bytes.ContainsRune(text, 0):
		return fmt.Errorf("step %s is no text", name)
	case bytes.ContainsRune(text, '\r'):
		return fmt.Errorf("step %s has the line ends of Windows", name)
	}
	return nil
}

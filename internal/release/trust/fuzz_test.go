package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"pulley/internal/model/refusal"
)

// For any list: no panic, and no valid line without a holder and a key that may sign.
func FuzzParseSigners(f *testing.F) {
	key := text(softKey(f, 1).PublicKey())
	for _, seed := range []string{
		"", "# none\n", "alice@dev " + key, "alice@*,!alice@production " + key + " at work\r\n",
		`"bob smith@dev" namespaces="a\"b",valid-after="20260101Z",valid-before="202701011230Z" ` + key + "\nalice@dev " + key,
		"alice@dev cert-authority " + key, "SSHKRL\n\x00", "alice@dev " + text(newSK(1).PublicKey()), key,
	} {
		f.Add([]byte(seed), []byte(key+"\n"))
		f.Add([]byte("alice@dev "+key), []byte(seed))
	}
	signatures := sign(f, softKey(f, 1), Release, record)
	f.Fuzz(func(t *testing.T, allowed, revoked []byte) {
		s, err := ParseSigners(allowed, revoked)
		if err != nil {
			return
		}
		for _, signer := range s.All() {
			if len(signer.Names()) == 0 || checkKey(signer.Key) != nil || signer.Line < 1 {
				t.Errorf("a signer without name, key or line: %+v", signer)
			}
		}
		if by, err := s.Verify(Release, "dev", []byte(record), signatures, now); err == nil && !bytes.Contains(allowed, []byte(by+"@")) {
			t.Errorf("it is by %q, who is not in %q", by, allowed)
		}
		// Writing a list again must not change its meaning.
		for _, signer := range s.All() {
			changed, after, err := expire(allowed, signer.Fingerprint(), now)
			if err == nil && (after.validity(now.Add(time.Second)) != Expired || len(changed) == 0) {
				t.Errorf("%q expired became %q", allowed, changed)
			}
		}
	})
}

// Split and Join must give the same value again, so that all displayed bytes were checked.
func FuzzSplit(f *testing.F) {
	f.Add([]byte(record))
	f.Add([]byte(record + "\n"))
	f.Add([]byte("\n\n"))
	f.Add(Join([]byte(record), sign(f, softKey(f, 1), Release, record)))
	f.Fuzz(func(t *testing.T, value []byte) {
		r, signatures := Split(value)
		if bytes.Contains(r, []byte("\n")) {
			t.Errorf("a record of two lines: %q", r)
		}
		if again := Join(r, signatures); !bytes.Equal(again, value) && !bytes.Equal(append(again, '\n'), value) {
			t.Errorf("%q became %q", value, again)
		}
	})
}

// For any bytes: no panic, and only the real signature is valid.
func FuzzVerify(f *testing.F) {
	alice := softKey(f, 1)
	s := mustParse(f, "alice@dev "+text(alice.PublicKey())+"\nhard@dev "+text(newSK(1).PublicKey()), "")
	good := map[string]bool{}
	for _, key := range []ssh.Signer{alice, newSK(1)} {
		signatures := sign(f, key, Release, record)
		blocks, err := unarmor(signatures)
		if err != nil {
			f.Fatal(err)
		}
		sig, err := parseSignature(blocks[0])
		if err != nil {
			f.Fatal(err)
		}
		good[string(sig.Signature.Blob)] = true
		f.Add(signatures)
		f.Add(append(sign(f, softKey(f, 2), Release, record), signatures...))
		f.Add(sign(f, key, Data, record))
		f.Add(sign(f, key, Release, record+" "))
	}
	f.Add([]byte(beginSignature + "\n" + endSignature + "\n"))
	f.Fuzz(func(t *testing.T, signatures []byte) {
		_, err := s.Verify(Release, "dev", []byte(record), signatures, now)
		var r *Refusal
		if err != nil {
			if !errors.As(err, &r) || r.Code == "" || len(r.Error()) > 3*refusal.MaxParamsBytes || strings.ContainsFunc(r.Error(), unicode.IsControl) {
				t.Errorf("the error is not a refusal: %v", err)
			}
			return
		}
		blocks, err := unarmor(signatures)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if sig, err := parseSignature(b); err == nil && good[string(sig.Signature.Blob)] {
				return
			}
		}
		t.Errorf("accepted without a signature that was made: %q", signatures)
	})
}

// FuzzVerifyBlock is FuzzVerify without the armor, so that mutations reach more code.
func FuzzVerifyBlock(f *testing.F) {
	alice := softKey(f, 1)
	s := mustParse(f, "alice@dev "+text(alice.PublicKey()), "")
	blocks, err := unarmor(sign(f, alice, Release, record))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blocks[0])
	f.Add(insideSK(f))
	made, err := parseSignature(blocks[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		if _, why := s.verify("dev", []byte(record), block, now, []Namespace{Release}); why != nil {
			return
		}
		sig, err := parseSignature(block)
		if err != nil || !bytes.Equal(sig.Signature.Blob, made.Signature.Blob) || sig.HashAlgorithm != made.HashAlgorithm {
			t.Errorf("accepted, and not what was made: %q", block)
		}
	})
}

func insideSK(f *testing.F) []byte {
	blocks, err := unarmor(sign(f, newSK(1), Release, record))
	if err != nil {
		f.Fatal(err)
	}
	return blocks[0]
}

// An accepted permit must have the same meaning after it is written again.
func FuzzParsePermit(f *testing.F) {
	for _, p := range []Permit{releasePermit(5, "2.0.0", "1.0.0-rc1"), dataPermit(6, 7, 0, "")} {
		b, err := p.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePermit(b)
		if err != nil {
			return
		}
		again, err := p.Encode()
		if err != nil {
			return // JSON cannot represent this time
		}
		q, err := ParsePermit(again)
		if err != nil {
			t.Fatalf("%q became %q: %v", b, again, err)
		}
		if twice, err := q.Encode(); err != nil || !bytes.Equal(twice, again) {
			t.Errorf("%q became %q: %v", again, twice, err)
		}
		down := target("0.9.0", 2)
		down.Environment = p.Environment
		if _, err := (HighWaterMark{Environment: p.Environment, Release: "1.0.0", Data: 3}).Check(down, []Permit{p}); err == nil && (p.Release == nil || p.Data == nil) {
			t.Errorf("%q let more go back than it says", b)
		}
	})
}

// An accepted mark can be saved and loaded again.
func FuzzParseHighWaterMark(f *testing.F) {
	for _, mark := range []HighWaterMark{{}, {"dev@t42", "1.4.0", 7, 20, true, "ab", 7, 21, 22}} {
		b, err := json.Marshal(markFile{markFormat, mark})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		mark, err := parseMark(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(markFile{markFormat, mark})
		if err != nil {
			t.Fatal(err)
		}
		if same, err := parseMark(again); err != nil || same != mark {
			t.Errorf("%+v became %+v: %v", mark, same, err)
		}
		if mark.Environment == "" {
			return
		}
		same := Target{Environment: mark.Environment, Release: mark.Release, Data: mark.Data}
		if next, err := mark.Check(same, nil); err != nil || next != mark {
			t.Errorf("%+v became %+v: %v", mark, next, err)
		}
		if mark.Data > 0 {
			same.Data--
			if _, err := mark.Check(same, nil); err == nil {
				t.Errorf("%+v let go down", mark)
			}
		}
	})
}

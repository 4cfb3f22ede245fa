// Package refusal owns the codes with which trust refuses a record or a target, and renders their sentences. It imports
// no other package of Pulley, so package model can render a stored refusal. It must never decide whether a record is
// valid.
package refusal

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Code is the reason why a record is not authentic, or why a node may not take a target. Codes are stored and printed;
// Sentence renders the text.
type Code string

// The codes and their parameters. Each code also has "release", "data" or "statement", which names the record. The value
// of "statement" is its environment.
const (
	NotSigned             Code = "not_signed"
	RecordMissing         Code = "record_missing"
	RecordUnreadable      Code = "record_unreadable"       // detail
	SignatureUnreadable   Code = "signature_unreadable"    // detail
	SignatureMismatch     Code = "signature_mismatch"      // by, key
	WrongUse              Code = "wrong_use"               // use, want
	KeyUnknown            Code = "key_unknown"             // key
	KeyRevoked            Code = "key_revoked"             // by, key
	KeyNotYetValid        Code = "key_not_yet_valid"       // by, key, at
	KeyExpired            Code = "key_expired"             // by, key, at
	EnvironmentNotAllowed Code = "environment_not_allowed" // by, key, environment, allowed
	UseNotAllowed         Code = "use_not_allowed"         // by, key, use, allowed
	NoValidSignature      Code = "no_valid_signature"      // count; 1.code, 1.key, … 2.code, …
	EnvironmentMissing    Code = "environment_missing"     // the request names no environment
	ReleaseTooOld         Code = "release_too_old"         // high_water_mark
	DataTooOld            Code = "data_too_old"            // high_water_mark
	VersionUnreadable     Code = "version_unreadable"      // detail
	RecordMismatch        Code = "record_mismatch"         // found, want: named by the record and by the target
	WrongEnvironment      Code = "wrong_environment"       // environment, want
	SignersRequired       Code = "signers_required"        // environment
	SignersMissing        Code = "signers_missing"         // file
	SignersUnreadable     Code = "signers_unreadable"      // file, detail
	RevokedUnreadable     Code = "revoked_unreadable"      // file, detail
	MarkUnreadable        Code = "high_water_mark_unreadable"

	StatementMissing  Code = "statement_missing"         // environment
	StatementExpired  Code = "statement_expired"         // environment, at
	StatementDiffers  Code = "statement_differs"         // environment, found, want: named by the statement and by etcd
	StatementTooOld   Code = "statement_too_old"         // environment, epoch, high_water_mark
	StatementReplayed Code = "statement_replayed"        // environment, at, high_water_mark
	StatementFuture   Code = "statement_from_the_future" // environment, at
)

// Params are the parameters of a code. Each value is one line of printable text.
type Params map[string]string

// Error is a code with its parameters, as an error.
type Error struct {
	Code   Code   `json:"code"`
	Params Params `json:"params,omitempty"`
}

func (r *Error) Error() string { return Sentence(r.Code, r.Params) }

// Hint returns the remedy, or "" if the sentence contains it.
func (r *Error) Hint() string {
	switch r.Code {
	case ReleaseTooOld, DataTooOld:
		return "to allow it, run `pulley rollback -e ENVIRONMENT --sign-key FILE`"
	case SignersRequired:
		return "to check signatures, install the file of allowed signers on the node: `pulley key list --signers FILE` checks it"
	case MarkUnreadable:
		return r.Params["hint"]
	case StatementFuture:
		return "correct the clock of this machine, or of the machine that signed it"
	case StatementMissing, StatementExpired, StatementDiffers, StatementReplayed:
		return "check the targets with `pulley status -e ENVIRONMENT`, then run `pulley sign -e ENVIRONMENT --sign-key FILE`"
	case StatementTooOld:
		return "check the targets with `pulley status -e ENVIRONMENT`, then run `pulley recover -e ENVIRONMENT --sign-key FILE`"
	}
	return ""
}

// Size limits of quoted text: its source may be an attacker.
const (
	maxValueBytes  = 300
	maxNameBytes   = 64 // of a code or a parameter
	MaxParamsBytes = 1000
)

// New creates a refusal from pairs of parameter names and values. It omits empty values.
func New(code Code, pairs ...any) *Error {
	r := &Error{Code: code, Params: Params{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := Clean(fmt.Sprint(pairs[i+1]), maxValueBytes); value != "" {
			r.Params[fmt.Sprint(pairs[i])] = value
		}
	}
	return r
}

// Clipped returns a refusal that a node reported, in the limits of New and of NoneOf; nil for none.
func (r *Error) Clipped() *Error {
	if r == nil {
		return nil
	}
	c, bytes := &Error{Code: Code(Clean(string(r.Code), maxNameBytes)), Params: Params{}}, 0
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		key, value := Clean(name, maxNameBytes), Clean(r.Params[name], maxValueBytes)
		if bytes += len(key) + len(value); bytes > MaxParamsBytes {
			break
		}
		c.Params[key] = value
	}
	return c
}

// Of returns the refusal with the name of its record: a release or a generation of data.
func (r *Error) Of(kind, name string) *Error {
	of := New(r.Code, kind, name)
	maps.Copy(of.Params, r.Params)
	return of
}

// NoneOf combines the refusals of several signatures. It drops the last ones if the size exceeds the limit.
func NoneOf(all []*Error) *Error {
	if len(all) == 1 {
		return all[0]
	}
	r := New(NoValidSignature, "count", len(all))
	bytes := 0
	for i, one := range all {
		prefix := strconv.Itoa(i+1) + "."
		part := Params{prefix + "code": string(one.Code)}
		for key, value := range one.Params {
			part[prefix+key] = value
		}
		for key, value := range part {
			bytes += len(key) + len(value)
		}
		if bytes > MaxParamsBytes {
			break
		}
		maps.Copy(r.Params, part)
	}
	return r
}

// Sentence renders a code. For an unknown code, from another version of Pulley, it prints the code and the parameters.
func Sentence(code Code, p Params) string {
	subject := "the record"
	switch {
	case p["release"] != "":
		subject = "release " + p["release"]
	case p["data"] != "":
		subject = "data generation " + p["data"]
	case p["statement"] != "":
		subject = "the statement of the targets of " + p["statement"]
	}
	return sentence(subject, code, p)
}

func sentence(subject string, code Code, p Params) string {
	if code == NoValidSignature {
		return fmt.Sprintf("%s has %s signatures, and none is valid: %s", subject, p["count"], strings.Join(p.each(), "; "))
	}
	signed := fmt.Sprintf("%s is signed by %s", subject, p.signer())
	known := map[Code]string{
		NotSigned:             subject + " is not signed",
		RecordMissing:         "the record of " + subject + " does not exist",
		RecordUnreadable:      fmt.Sprintf("%s cannot be read: %s", subject, p["detail"]),
		SignatureUnreadable:   fmt.Sprintf("the signature of %s cannot be read: %s", subject, p["detail"]),
		SignatureMismatch:     fmt.Sprintf("%s was altered after it was signed: the signature by %s does not match", subject, p.signer()),
		WrongUse:              fmt.Sprintf("%s is signed as %q, not as %q", subject, p["use"], p["want"]),
		KeyUnknown:            signed + ", which is not the key of an allowed signer",
		KeyRevoked:            signed + ", whose key is revoked",
		KeyNotYetValid:        signed + ", whose key is not valid before " + p.day("at"),
		KeyExpired:            signed + ", whose key expired on " + p.day("at"),
		EnvironmentNotAllowed: fmt.Sprintf("%s, who may not sign for %s, only for %s", signed, p["environment"], p["allowed"]),
		UseNotAllowed:         fmt.Sprintf("%s, whose key may not sign as %q, only as %s", signed, p["use"], p["allowed"]),
		EnvironmentMissing:    "no environment is named",
		ReleaseTooOld:         tooOld("release "+orNone(p["release"]), p),
		DataTooOld:            tooOld("data generation "+orNone(p["data"]), p),
		VersionUnreadable:     fmt.Sprintf("release %q cannot be compared with older ones: %s", p["release"], p["detail"]),
		RecordMismatch:        fmt.Sprintf("the record of %s is %s, and the target names %s", subject, p["found"], p["want"]),
		WrongEnvironment:      fmt.Sprintf("%s is signed for environment %q, and this node is in %q", subject, p["environment"], p["want"]),
		SignersRequired:       fmt.Sprintf("environment %q requires signatures, and this node has no allowed signers", p["environment"]),
		SignersMissing:        fmt.Sprintf("the file of allowed signers, %s, is missing", p["file"]),
		SignersUnreadable:     fmt.Sprintf("cannot read the allowed signers: %s: %s", p["file"], p["detail"]),
		RevokedUnreadable:     fmt.Sprintf("cannot read the revoked keys: %s: %s", p["file"], p["detail"]),
		MarkUnreadable:        p["detail"],
		StatementMissing:      subject + " is missing in etcd, and this node saw one before",
		StatementExpired:      fmt.Sprintf("%s ended at %s: the targets in etcd may be old", subject, p["at"]),
		StatementDiffers:      fmt.Sprintf("%s names %s for this node, and etcd names %s", subject, p["found"], p["want"]),
		StatementReplayed:     fmt.Sprintf("%s was signed at %s, and this node saw one of the same epoch that was signed at %s", subject, p["at"], p["high_water_mark"]),
		StatementTooOld:       fmt.Sprintf("%s is of epoch %s, and this node saw one of epoch %s", subject, p["epoch"], p["high_water_mark"]),
		StatementFuture:       fmt.Sprintf("%s was signed at %s, which is in the future by this machine's clock", subject, p["at"]),
	}[code]
	if known != "" {
		return known
	}
	text := string(code)
	for _, key := range slices.Sorted(maps.Keys(p)) {
		text += " " + key + "=" + p[key]
	}
	return text
}

func tooOld(what string, p Params) string {
	return fmt.Sprintf("%s is older than %s, the highest that this node attempted, and no signed rollback allows it", what, p["high_water_mark"])
}

// signer returns the key, with its holders if they are known.
func (p Params) signer() string {
	if p["by"] == "" {
		return p["key"]
	}
	return fmt.Sprintf("%s (%s)", p["by"], p["key"])
}

// day returns a time, without the time of day if that is midnight.
func (p Params) day(name string) string {
	if t, err := time.Parse(time.RFC3339, p[name]); err == nil {
		return Day(t)
	}
	return p[name]
}

// Day formats a time, without the time of day if that is midnight.
func Day(t time.Time) string {
	if t = t.UTC(); t.Truncate(24 * time.Hour).Equal(t) {
		return t.Format(time.DateOnly)
	}
	return t.Format(time.RFC3339)
}

// each returns the sentences of several signatures.
func (p Params) each() []string {
	var all []string
	for i := 1; p[strconv.Itoa(i)+".code"] != ""; i++ {
		prefix := strconv.Itoa(i) + "."
		part := Params{}
		for key, value := range p {
			if key, own := strings.CutPrefix(key, prefix); own {
				part[key] = value
			}
		}
		all = append(all, sentence("it", Code(part["code"]), part))
	}
	return all
}

// Clean converts any text to one printable line of at most n bytes.
func Clean(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
}

func orNone(s string) string {
	if s == "" || s == "0" {
		return "(none)"
	}
	return s
}

package environments

import (
	"fmt"
	"regexp"
	"strings"
)

// maxMember is the maximum length of an existing machine's name (RFC 1035, 2.3.4).
const maxMember = 253

var memberForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// CheckMember returns an error unless name is a valid name of an existing machine whose role is stored beside it: the
// name of a node, or a domain name in lower case of at most 253 bytes. Puppet accepts no other certnames.
func CheckMember(name string) error {
	if _, err := ParseNode(name); err == nil {
		return nil
	}
	var flaw *Error
	switch lower := strings.ToLower(name); {
	case name == "":
		flaw = &Error{Problem: "it is empty"}
	case len(name) > maxMember:
		flaw = &Error{Problem: fmt.Sprintf("it is %d bytes long, and a name may have %d", len(name), maxMember)}
	case memberForm.MatchString(name):
		return nil
	case lower != name && memberForm.MatchString(lower):
		flaw = &Error{Problem: "Puppet takes no capitals in names", Advice: fmt.Sprintf("did you mean %s?", lower)}
	default:
		flaw = &Error{Problem: "only lower-case letters, digits, dots and dashes are allowed, with a letter or digit at both ends"}
	}
	return cannot("use machine name", quoted(name), flaw)
}

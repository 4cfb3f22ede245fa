package environments

import (
	"errors"
	"strings"
	"testing"

	"pulley/internal/model"
)

// A name from a command line becomes a key, a certname and a folder: a name that is invalid in any of these must be
// refused.
func TestMembersAreNodesOrDomainNames(t *testing.T) {
	for _, name := range []string{"controller1", "controller1_t42", "db.example.com", "web", "10-0-0-1.example", strings.Repeat("a", 253)} {
		if err := model.CheckMember(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "../../x", "a\nb", "a\x1b[31mb", "a b", "-a", "a-", ".a", "a.", "a_b", "ü", "a/b", strings.Repeat("a", 254)} {
		if err := model.CheckMember(name); err == nil {
			t.Errorf("%q is a machine's name", name)
		}
	}
	var flaw *model.Error
	if err := model.CheckMember("WEB.Example.COM"); !errors.As(err, &flaw) || !strings.Contains(flaw.Hint(), "web.example.com") {
		t.Errorf("capitals: %v", err)
	}
}

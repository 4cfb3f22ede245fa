package hieradata

import (
	"errors"
	"strings"
	"testing"
)

// flawCases are texts of data, with their flaws. TestFlawsAreThoseOfPuppet compares them with the real Puppet.
var flawCases = []struct{ text, flaw string }{
	{`plain`, ""},
	{`%{facts.os.name} and %{::trusted.certname}`, ""},
	{`%{ environment }`, ""},
	{`%{} %{::} %{''}`, ""},
	{`%{lookup('known')} %{hiera("known")} %{scope('facts.os.name')} %{literal('%')}{User-Agent}`, ""},
	{`%{alias('known')}`, ""},
	{`%{facts."os".'name'}`, ""},
	{`%{lookup('a.b.c')}`, ""},
	{`%{unset_variable}`, ""},
	{`%{lookup('x'}`, "key"},
	{`%{alias(..)}`, "key"},
	{`%{lookup('x', 'y')}`, "key"},
	{`%{lookup ('x')}`, "key"},
	{`%{facts..os}`, "key"},
	{`%{facts.os.}`, "key"},
	{`%{.os}`, "key"},
	{`%{lookup('a..b')}`, "key"},
	{`%{lookup('')}`, "key"},
	{`%{'a'b}`, "key"},
	{`%{find('x')}`, "method"},
	{`%{alias('known')} and more`, "alias"},
	{`%{unclosed`, "open"},
	{`%{environment} %{lookup('x')`, "open"},
	{`%{alias(known)}`, "not_variable"},
	{`%h "%{User-Agent}i"`, "not_variable"},
}

// Without it, a value would pass all checks and end the run of every node that looks it up.
func TestFlaws(t *testing.T) {
	for _, c := range flawCases {
		var got []string
		for _, f := range Flaws(c.text, true) {
			got = append(got, string(f.Code))
			if f.String() == "" || !strings.HasPrefix(f.String(), f.Text) {
				t.Errorf("%s: %q", c.text, f)
			}
		}
		if strings.Join(got, " ") != c.flaw {
			t.Errorf("%s: got %q, want %q", c.text, got, c.flaw)
		}
	}
	if f := Flaws(`%{lookup('known')}`, false); len(f) != 1 || f[0].Code != FlawNoMethods || !f[0].Fails() {
		t.Errorf("in hiera.yaml: %v", f)
	}
	if f := Flaws(`nodes/%{trusted.certname}.yaml`, false); f != nil {
		t.Errorf("in hiera.yaml: %v", f)
	}
}

// Without it, live data would end the runs of all nodes of a layer.
func TestSetRefusesFlawedInterpolations(t *testing.T) {
	for _, value := range []string{`"%{lookup('x'}"`, `[a, {b: "%{alias(..)}"}]`, `{"%{find('x')}": 1}`, `"a %{alias('b')}"`} {
		_, err := Set(nil, "a", value)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "every lookup of the value would fail: %{") || syntax.Hint() == "" {
			t.Errorf("%s: %v", value, err)
		}
	}
	if _, err := Set([]byte("b: \"%{lookup('x'}\"\n"), "a", `"%{User-Agent} %{unclosed"`); err != nil {
		t.Errorf("what Puppet accepts, beside what was stored before: %v", err)
	}
	if got := strings.Join(Remarks(`["%{lookup('x'}", "%{User-Agent}"]`), "|"); got != "%{User-Agent}: no variable has this name, and Puppet puts nothing there" {
		t.Errorf("remarks: %s", got)
	}
}

//go:build e2e

package hieradata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// psych reads YAML documents as Puppet does, one after the other, and returns the types that Ruby made of them. Each
// document and each answer is one line of JSON.
const psych = `
require 'yaml'; require 'json'; require 'date'
def show(v)
  case v
  when nil then ['null']
  when true, false then ['boolean', v]
  when Integer then ['integer', v.to_s]
  when Float then ['float', [v].pack('G').unpack1('H*')]
  when String then ['string', v]
  when Array then ['list', v.map { |x| show(x) }]
  when Hash then ['mapping', v.map { |k, x| [show(k), show(x)] }]
  else ['other', v.class.to_s]
  end
end
STDOUT.sync = true
STDIN.each_line do |line|
  answer = begin
    show(YAML.safe_load(JSON.parse(line), permitted_classes: [Symbol], aliases: true))
  rescue Exception => e
    ['error', e.message]
  end
  puts JSON.generate(answer)
end
`

type rubyReader struct {
	in  *json.Encoder
	out *json.Decoder
}

func startRuby(t *testing.T) rubyReader {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ruby", "-e", psych)
	cmd.WaitDelay = 10 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatalf("install ruby (it comes with Puppet): %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("ruby ended: %v\n%s", err, problems.String())
		}
	})
	return rubyReader{json.NewEncoder(in), json.NewDecoder(out)}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func (r rubyReader) read(t fataler, yaml string) string {
	t.Helper()
	if err := r.in.Encode(yaml); err != nil {
		t.Fatalf("cannot ask ruby: %v", err)
	}
	var answer any
	if err := r.out.Decode(&answer); err != nil {
		t.Fatalf("cannot hear ruby: %v", err)
	}
	return compact(answer)
}

// shown returns v in the format of psych's answers.
func shown(v Value) any {
	switch x := v.v.(type) {
	case bool:
		return []any{"boolean", x}
	case int64:
		return []any{"integer", scalarText(v)}
	case float64:
		return []any{"float", fmt.Sprintf("%016x", math.Float64bits(x))}
	case string:
		return []any{"string", x}
	case []Value:
		list := []any{}
		for _, item := range x {
			list = append(list, shown(item))
		}
		return []any{"list", list}
	case mapping:
		list := []any{}
		for _, e := range x {
			list = append(list, []any{shown(e.key), shown(e.value)})
		}
		return []any{"mapping", list}
	}
	return []any{"null"}
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Without it, a value displayed as text could be a number, a boolean, a date or a symbol in the catalog.
func TestPsychReadsPrintedValues(t *testing.T) {
	ruby := startRuby(t)
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(4).Draw(t, "value")
		layer := canonicalLayer(mapping{{Value{"key"}, v}})
		want := compact(shown(Value{mapping{{Value{"key"}, v}}}))
		if got := ruby.read(t, string(layer)); got != want {
			t.Fatalf("%s\nPsych read %s\nwe showed  %s", layer, got, want)
		}
		if back, err := parseLayer(layer); err != nil || compact(shown(back)) != want {
			t.Fatalf("%s\nwe read %v, %v\nand showed %s", layer, back, err, want)
		}
	})
}

// Without it, a word on which YAML's versions differ could become another type.
func TestPsychReadsUnusualWords(t *testing.T) {
	ruby := startRuby(t)
	for _, text := range oddWords {
		v, err := parseValue(text)
		if err != nil {
			v = Value{text}
		}
		if text == "<<" {
			continue // refused as a key, see TestParseValueRefuses
		}
		for _, v := range []Value{v, {text}} {
			layer := canonicalLayer(mapping{{Value{text}, v}})
			want := compact(shown(Value{mapping{{Value{text}, v}}}))
			if got := ruby.read(t, string(layer)); got != want {
				t.Errorf("%q: Psych read %s from %s, we showed %s", text, got, layer, want)
			}
		}
	}
}

var oddWords = strings.Fields(`yes no on off y n Y N Yes NO On OFF true TRUE tRue ~ null Null nULL 0777 08 09 0o17 1_000 1,000 1__0
	_1 1_ 12:34:56 1:30 190:20:30.15 2024-01-01 2024-1-1 2001-12-14t21:59:43.10-05:00 2001-02-30 1e3 1E3 1.5e3 1.0e+20 1.e+1 1. .5 . ..
	+1 -1 +.5 -.5 0x1F 0xG 0b11 0b2 0b 0x 00 -0 -0.0 +0 0.0 << = - -- --- ... ? : :sym ::x :"a" a:b a: :a #x a#b
	! !a !!str & &a * *a | > % %a @a [ ] { } , ,a .inf -.inf +.INF .nan .NaN NaN Infinity 1.2.3 1.2.3.4 ::1 fe80::1 0.1.2
	123456789012345678901234567890 9223372036854775807 -9223372036854775808 9223372036854775808 685_230.15 1_0.5 /etc/motd a::b::c a::
	é ünï 日本 😀 /a//b a-b-c a.b x_y -a a- 'a' "a" \\ \\n é: ´ null. true. yes. no- ~a a~ 1a a1 0a 1.a e5 1.5E-3 1.5e-3`)

func anyScalar() *rapid.Generator[Value] {
	return rapid.OneOf(
		rapid.Just(Value{}),
		rapid.Map(rapid.Bool(), func(b bool) Value { return Value{b} }),
		rapid.Map(rapid.Int64(), func(n int64) Value { return Value{n} }),
		rapid.Map(rapid.Float64(), func(f float64) Value { return Value{f} }),
		anyText(),
	)
}

func anyText() *rapid.Generator[Value] {
	texts := rapid.OneOf(
		rapid.String(),
		rapid.SampledFrom(oddWords),
		rapid.StringMatching(`[-+.:,_0-9eExobTtZ ]{1,12}`),
		rapid.StringMatching(`[ \t\n\r"'\\#&*!|>%@{}\[\],:?-]{0,8}[a-z]{0,3}[ \n]{0,2}`),
		rapid.StringMatching(`[\x00-\x20\x7f-\xa0\x{2028}\x{2029}\x{feff}\x{fffd}-\x{ffff}]{1,4}`),
	)
	return rapid.Map(texts, func(s string) Value { return Value{strings.ToValidUTF8(s, "?")} })
}

func anyValue(depth int) *rapid.Generator[Value] {
	if depth == 0 {
		return anyScalar()
	}
	return rapid.Custom(func(t *rapid.T) Value {
		switch rapid.IntRange(0, 3).Draw(t, "shape") {
		case 0:
			return Value{rapid.SliceOfN(anyValue(depth-1), 0, 4).Draw(t, "list")}
		case 1:
			keys := rapid.SliceOfNDistinct(anyText(), 0, 4, func(v Value) string { return v.v.(string) }).
				Filter(func(keys []Value) bool { return !slices.ContainsFunc(keys, func(k Value) bool { return k.v == "<<" }) }).
				Draw(t, "keys")
			entries := make([]entry, len(keys))
			for i, k := range keys {
				entries[i] = entry{k, anyValue(depth-1).Draw(t, "item")}
			}
			m, err := sorted(entries)
			if err != nil {
				t.Fatalf("cannot sort: %v", err)
			}
			return Value{m}
		}
		return anyScalar().Draw(t, "scalar")
	})
}

package environments

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Users copy from the reference: a wrong example or a missing key costs each of them an hour.
func TestReferenceIsRight(t *testing.T) {
	data, err := os.ReadFile("../docs/environments.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	for _, m := range blocks {
		text := strings.ReplaceAll(m[1], "sha256:0a1b…", "sha256:"+strings.Repeat("0", 64))
		var err error
		switch {
		case strings.Contains(text, "# clouds/"):
			err = ParseCloud("west.yaml", []byte(text))
		case strings.Contains(text, "roles:"):
			_, err = Parse("dev.yaml", []byte(text))
		default:
			_, err = Parse("dev.yaml", []byte(text+"roles: {web: {cardinality: 1}}\n"))
		}
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if len(blocks) < 6 {
		t.Errorf("only %d examples were found", len(blocks))
	}
	var missing func(fields []field)
	missing = func(fields []field) {
		for _, f := range fields {
			if !strings.Contains(page, "`"+f.key+"`") {
				t.Errorf("the reference does not explain %s", f.key)
			}
			missing(f.fields())
		}
	}
	missing(fieldsOf(new(Environment)))
	missing(fieldsOf(new(Role)))
	missing(fieldsOf(new(Component)))
}

package main

import (
	"strings"
	"testing"

	"pulley/internal/model"
)

// Puppet writes an error up to four times: a screen of repetitions hides what failed.
func TestRunShowsEachErrorOnce(t *testing.T) {
	t.Parallel()
	cause := "Could not set 'file' on ensure: No such file or directory"
	var out strings.Builder
	printRun(&out, model.Run{Result: model.Result{
		Resources: []model.ResourceEvent{{Resource: "File[gdm]", Status: "failed", Messages: []string{"change from 'absent' to 'file' failed: " + cause}}},
		Log: []model.LogLine{
			{Level: "err", Source: "Puppet", Message: cause}, {Level: "err", Source: "Puppet", Message: cause + " (file: site.pp, line: 3)\nWrapped exception:\nNo such file"},
			{Level: "err", Source: "/Stage[main]/File[gdm]/ensure", Message: "change from 'absent' to 'file' failed: " + cause},
			{Level: "err", Source: "Puppet", Message: "another error"}, {Level: "notice", Source: "Puppet", Message: "Applied catalog"},
		},
	}})
	if text := out.String(); strings.Count(text, cause) != 1 || !strings.Contains(text, "another error") || !strings.Contains(text, "Applied catalog") || !strings.Contains(text, "3 repetitions of the failures above") {
		t.Error(text)
	}
}

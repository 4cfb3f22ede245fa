//go:build e2e && linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/userdata"
)

// cloud-init asks blkid for the volume, and the kernel for its files: both must see what other tools see.
func TestISOIsOneForOtherTools(t *testing.T) {
	for program, bringsIt := range map[string]string{"blkid": "util-linux", "isoinfo": "genisoimage"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing: apt-get install %s", program, bringsIt)
		}
	}
	path := filepath.Join(t.TempDir(), "seed.iso")
	text := "#cloud-config\n" + strings.Repeat("# as large as it gets\n", 700)
	if err := writeISO(path, []userdata.SeedFile{{Name: "user-data", Text: []byte(text)}, {Name: "meta-data", Text: []byte("instance-id: one\n")}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ command, want string }{
		{"blkid -p -o value -s LABEL " + path, "cidata\n"},
		{"blkid -p -o value -s TYPE " + path, "iso9660\n"},
		{"isoinfo -R -x /user-data -i " + path, text},
		{"isoinfo -R -x /meta-data -i " + path, "instance-id: one\n"},
		{"isoinfo -R -f -i " + path, "/meta-data\n/user-data\n"},
	} {
		words := strings.Fields(c.command)
		out, err := exec.Command(words[0], words[1:]...).Output()
		if err != nil || string(out) != c.want {
			t.Errorf("%s says %.100q, should say %.100q: %v", c.command, out, c.want, err)
		}
	}
}

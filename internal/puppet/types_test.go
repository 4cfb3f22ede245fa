package puppet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A module's own hiera.yaml decrypts as that of the environment does: a bucket must keep no file, and the keys count.
func TestSecretsOfModulesCount(t *testing.T) {
	t.Parallel()
	const eyaml = "version: 5\nhierarchy: [{name: a, lookup_key: eyaml_lookup_key, path: x.yaml, options: {pkcs7_private_key: /k/KEY.pem}}]\n"
	for conf, names := range map[string]map[string]string{
		"":                                      {"hiera.yaml": "/k/KEY.pem", "modules/app/hiera.yaml": "/k/KEY.pem", "site/app/hiera.yaml": "", "modules/app/spec/hiera.yaml": ""},
		"modulepath = site/a:$basemodulepath\n": {"site/a/app/hiera.yaml": "/k/KEY.pem", "modules/app/hiera.yaml": ""},
		"modulepath = $codedir/environments/dev/site:$environmentpath/dev/ours\n":        {"site/app/hiera.yaml": "/k/KEY.pem", "ours/app/hiera.yaml": "/k/KEY.pem"},
		"modulepath = $codedir/environments/prod/site:$environmentpath/$environment/x\n": {"site/app/hiera.yaml": "", "x/app/hiera.yaml": ""},
	} {
		for name, key := range names {
			tree := t.TempDir()
			for file, text := range map[string]string{"environment.conf": conf, "modules/other/hiera.yaml": "version: 5\n", name: eyaml} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(tree, file)), 0o700), os.WriteFile(filepath.Join(tree, file), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			needs, err := readEyaml(tree, "dev")
			if keepsSecrets(tree, "dev") != (key != "") || strings.Join(needs.PrivateKeys, " ") != key || err != nil {
				t.Errorf("%q, %s: %t, %v, %v", conf, name, keepsSecrets(tree, "dev"), needs, err)
			}
		}
	}
}

// One hiera.yaml that cannot be read must not hide what the others need.
func TestUnreadableHieraConfigHidesNothing(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	for name, text := range map[string]string{
		"hiera.yaml":               "version: 5\nhierarchy: [{name: a, lookup_key: eyaml_lookup_key, path: x.yaml, options: {pkcs7_private_key: /k/KEY.pem}}]\n",
		"modules/big/hiera.yaml":   strings.Repeat("#", maxHieraConfig+1),
		"modules/other/hiera.yaml": "version: 5\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o700), os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	needs, err := readEyaml(tree, "dev")
	if err == nil || !strings.Contains(err.Error(), "modules/big/hiera.yaml") || !needs.Used || !keepsSecrets(tree, "dev") {
		t.Errorf("%+v, %v", needs, err)
	}
}

package environments

import "testing"

// Otherwise an operator would learn of an unsupported value only after the nodes are recorded and the first machine is
// ordered.
func TestLoadRefusesUnsupportedKeys(t *testing.T) {
	for _, c := range []struct{ sentence, yaml, cloud, want string }{
		{"a flavor of local that is no size", "provider: local\nroles:\n  web: {cardinality: 1, flavor: banana}\n", "",
			"environments/dev.yaml:3:33: flavor \"banana\" of role \"web\": it is not a size: the flavor of a local machine limits its disk | write a size such as 512M or 2G, or leave out `flavor`; `flavors: {banana: 2G}` gives this name a size"},
		{"a flavor that stands for no size", "provider: local\nflavors: {small: m1.small}\nroles:\n  web: {cardinality: 1, flavor: small}\n", "",
			"environments/dev.yaml:4:33: flavor \"small\" of role \"web\", which stands for \"m1.small\": it is not a size: the flavor of a local machine limits its disk | write a size such as 512M or 2G, or leave out `flavor`; `flavors: {small: 2G}` gives this name a size"},
		{"a flavor that stands for a size", "provider: local\nflavors: {small: 512M}\nroles:\n  web: {cardinality: 1, flavor: small}\n  db: {cardinality: 1}\n", "", ""},
		{"a flavor without an entry is one mistake", "provider: local\nflavors: {small: 512M}\nroles:\n  web: {cardinality: 1, flavor: large}\n", "",
			"environments/dev.yaml:4:33: flavor \"large\" of role \"web\" has no entry in flavors | there is small"},
		{"a size, and nothing else", "provider: {driver: local, interval: '@every 2s'}\nroles:\n  web: {cardinality: 1, flavor: 2G}\n", "", ""},
		{"an image and networks of local", "provider: local\nroles:\n  web: {cardinality: 1, image: debian, networks: [a]}\n", "",
			"environments/dev.yaml:3:32: image \"debian\" of role \"web\": a local machine is a view of the host | leave out `image`\n" +
				"environments/dev.yaml:3:51: network \"a\" of role \"web\": local machines share the network of the host | leave out `networks`"},
		{"the driver of a cloud", "roles:\n  web: {cardinality: 1, image: debian}\n", "provider: local\n",
			"environments/dev.yaml:2:32: image \"debian\" of role \"web\": a local machine is a view of the host | leave out `image`"},
		{"a flavor and networks of nspawn", "provider: nspawn\nroles:\n  web: {cardinality: 1, flavor: 2G, networks: [a]}\n", "",
			"environments/dev.yaml:3:33: flavor \"2G\" of role \"web\": machines of nspawn have no flavors | leave out `flavor`\n" +
				"environments/dev.yaml:3:48: network \"a\" of role \"web\": machines of nspawn are on the bridge that `provider` names | leave out `networks`"},
		{"an image of nspawn that there is not", "provider: nspawn\nroles:\n  web: {cardinality: 1, image: debian-12}\n", "",
			"environments/dev.yaml:3:32: image \"debian-12\" of role \"web\": nspawn has no image with this name | use debian, or the absolute path of a root folder"},
		{"images of nspawn", "provider: nspawn\nimages: {own: /srv/root}\nroles:\n  web: {cardinality: 1, image: own}\n", "", ""},
		{"Debian", "provider: nspawn\nroles:\n  web: {cardinality: 1, image: debian}\n", "", ""},
		{"any words of others", "provider: openstack\nroles:\n  web: {cardinality: 1, flavor: banana, image: debian, networks: [a]}\n", "", ""},
		{"any words without a provider", "roles:\n  web: {cardinality: 1, flavor: bare-metal, image: debian, networks: [a]}\n", "", ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := load(c.yaml, c.cloud, "")
			got := ""
			if err != nil {
				got = problemLines(t, err)
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Otherwise an environment that was stored before a driver began to refuse it could not be shown or destroyed.
func TestStoredValuesStayReadable(t *testing.T) {
	e, err := Decode([]byte(`{"v":1,"name":"dev","provider":{"driver":"local"},"roles":[{"name":"web","cardinality":1,"flavor":"banana","image":"debian"}]}`))
	if err != nil || e.Roles[0].Flavor != "banana" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestLocalFlavorsAreSizes(t *testing.T) {
	for flavor, want := range map[string]int64{"": 0, "512M": 512 << 20, "2G": 2 << 30, "65536": 65536, "1K": 1024, "1T": 1 << 40} {
		if got, ok := LocalSize(flavor); !ok || got != want {
			t.Errorf("%q: %d, %t", flavor, got, ok)
		}
	}
	for _, flavor := range []string{"small", "0", "-1", "+1", "1.5G", "512MB", "9999999999999T", " 1G", "G", "1_000", "01", "8388608T"} {
		if got, ok := LocalSize(flavor); ok {
			t.Errorf("%q: %d", flavor, got)
		}
	}
}

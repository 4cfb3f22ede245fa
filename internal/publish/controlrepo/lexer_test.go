package controlrepo

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Comments and texts must not make a valid repository fail.
func TestScanIgnoresCommentsAndStrings(t *testing.T) {
	for _, src := range []string{
		"# @@file { 'x': } File <<| |>> puppetdb_query('x') puppet:///files/x $server_facts\n",
		"/* @@file { 'x': }\n File <<| |>> */ notice(1)",
		"notice('@@file { File <<| |>> puppetdb_query(1) $servername')",
		`notice('it\'s @@file <<| |>>')`,
		`notice('a \\') # @@file`,
		`notice("@@file <<| |>> puppetdb_query(1) \$servername \${server_facts}")`,
		`notice("say \"@@file\"")`,
		"$a = @(EOT)\n  @@file { 'x': } <<| |>> ${server_facts} puppetdb_query(1)\n  | EOT\nnotice($a)",
		"$a = @(\"EOT\"/L)\n  @@file \\${server_facts} \"quoted\" it's\n  |- EOT\nnotice($a)",
		"f(@(A), @(\"B\"))\n@@file it's\n  A\n<<| \"\n  B\nnotice('x')",
		"node /^@@file <<| ' \\/ \" |>>/ { }",
		"if $x =~ /puppetdb_query\\(@@a/ { }",
		"case $x { /^@@file { '/: { } default: { } }",
		"$x.filter |$i| { $i =~ /'/ }\n",
		"$a = $b / 2\n$c = 'x' / 3 # /",
		"$a = [1] / 2 / 3",
		"$a = size($b) / 2; $d = \"/@@a\"",
		"file { '/x': source => 'puppet:///modules/ntp/ntp.conf' }",
		"file { '/x': source => \"puppet:///modules/${module_name}/x\" }",
		"file { '/x': source => \"puppet:///${mount}/x\" }",
		"file { ['/x', '/y']: source => ['puppet:///plugins', 'puppet:///pluginfacts/x'] }",
		"@user { 'virtual': }\nUser <| title == 'virtual' |>",
		"$puppetdb_query = 1\n$h = { puppetdb_query => 2 }\n",
		"$my_server_facts = 1\nnotice($foo::server_facts)\n",
		"# a comment that ends in a heredoc @(EOT)\nnotice(1)\n",
		"notice(\"${ { 'a' => '}' }['a'] } @@file\")",
		"notice(\"${x} # @@file\")",
		"file { '/x': source => ['puppet:///modules/a/b', \"puppet:///secure/${y}\"] }",
		"file { '/x': source => ['puppet:///files/b', \"puppet:///modules/${m}/b\"] }",
		"file { '/x': source => ['puppet://old.example/files/b', '/srv/b'] }",
		"class a(String $servername, $b = [1]) inherits c { notice(\"${servername} $servername\") }",
		"define a::b(\n  $servername = $name,\n) { notice($servername) }",
		"$servername = 'x'\nnotice($servername)",
	} {
		if found := scan("m.pp", src, lex(src)); len(found) != 0 {
			t.Errorf("%s\nfound %v", src, found)
		}
	}
}

// Nodes must not receive a release that they cannot apply, or that they apply differently than its author expects.
func TestScanFindsServerFeatures(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"class a {\n  @@file { '/x': }\n}", "m.pp:2:3: warning: exported resources"},
		{"@@nagios::host{ 'x': }", "m.pp:1:1: warning: exported resources"},
		{"\n  File <<| tag == 'x' |>> { mode => '0644' }", "m.pp:2:8: warning: exported resources need PuppetDB: Puppet warns and ignores them: a collector of them"},
		{"Foo::Bar<<||>>", "m.pp:1:9: warning: exported resources need PuppetDB: Puppet warns and ignores them: a collector of them"},
		{"$n = puppetdb_query('nodes {}')", "m.pp:1:6: warning: puppetdb_query"},
		{"$n = puppetdb_query ( ['from', 'nodes'] )", "m.pp:1:6: warning: puppetdb_query"},
		{"notice(\"n: ${puppetdb_query('x')}\")", "m.pp:1:14: warning: puppetdb_query"},
		{"$x = @(\"EOT\")\n  n: ${puppetdb_query('x')} and \"more\n  | EOT\n@@file { 'x': }", "m.pp:2:8: warning: puppetdb_query; m.pp:4:1: warning: exported"},
		{"file { '/x': source => 'puppet:///files/x' }", "m.pp:1:25: warning: the source is on a file server: the nodes that declare this file fail: puppet:///files [file_server]"},
		{"file { '/x': source => ['puppet:///files/b', \"puppet:///secure/${y}\"] }", "m.pp:1:26: warning: the source; m.pp:1:47: warning: the source"},
		{"file { '/x': source => 'puppet:///files/x', path => ['/x'] }", "m.pp:1:25: warning: the source"},
		{"file { '/x': source => 'puppet://master.example.org/modules/a/b' }", "m.pp:1:25: warning: the source is on a file server: the nodes that declare this file fail: puppet://master.example.org/"},
		{"notice(\"${server_facts['environment']}\")", "m.pp:1:11: warning: the variable describes a Puppet server: without one it describes the node, or is undefined: $server_facts [server_variable]"},
		{"notice($server_facts['environment'])", "m.pp:1:8: warning: the variable describes a Puppet server: without one it describes the node, or is undefined: $server_facts [server_variable]"},
		{"class a($x) { notice($servername) }", "m.pp:1:22: warning: the variable"},
		{"class a($servername) { notice($::servername) }", "m.pp:1:31: warning: the variable"},
		{"if $servername == 'x' { }", "m.pp:1:4: warning: the variable"},
		{"notice(\"from $servername\")", "m.pp:1:14: warning: the variable describes a Puppet server: without one it describes the node, or is undefined: $servername [server_variable]"},
		{"notice($::serverip)", "m.pp:1:8: warning: the variable describes a Puppet server: without one it describes the node, or is undefined: $::serverip [server_variable]"},
		{"$é = 'é'; @@file { 'x': }", "m.pp:1:11: warning: exported"},
		{"if $x =~ /it's/ { @@file { 'x': } }", "m.pp:1:19: warning: exported"},
		{"$a = 4 / 2\n@@file { 'x': }", "m.pp:2:1: warning: exported"},
		{"f(@(A), @(\"B\"))\nit's\n  A\nhe said \"\n  B\n@@file { 'x': }", "m.pp:6:1: warning: exported"},
		{"$x = /unclosed\n@@file { 'x': }", "m.pp:2:1: warning: exported"},
	} {
		var got []string
		for _, f := range scan("m.pp", c.src, lex(c.src)) {
			got = append(got, f.String())
			if f.Hint == "" {
				t.Errorf("no hint for %s", f)
			}
		}
		want := strings.Split(c.want, "; ")
		if len(got) != len(want) {
			t.Errorf("%s\ngot  %v\nwant %v", c.src, got, want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s\ngot  %s\nwant %s", c.src, got[i], want[i])
			}
		}
	}
}

// A file that is not Puppet must not delay `pulley validate` for minutes.
func TestScanEnds(t *testing.T) {
	for _, piece := range []string{"@@", "node ", "@(", "\"${", "/", "$servername ", "class ", "class a($x ", "[ 'puppet://x/' "} {
		src := strings.Repeat(piece, 10_000)
		if found := scan("m.pp", src, lex(src)); len(found) > maxScanFindings {
			t.Errorf("%d findings in %q…", len(found), piece)
		}
		(&nodeMatchers{}).collect(lex(src))
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		"@@file { 'x': }", "File <<| |>>", "\"a ${b['c']} $d\"", "$a = @(\"E\"/L)\n ${x}\n | E\n", "node /a\\/b/ { }", "'a\\", "\"${\"${", "/*", "@(A)", "@(A\n",
		"f(@(A), @(B))\nx\nA\ny\n-B", "$", "::a::B", "puppet:///x", "\xff\"\xfe${\xfd}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		last := -1
		for _, tok := range lex(src) {
			if tok.at < 0 || tok.at+len(tok.text) > len(src) {
				t.Fatalf("a token lies outside: %+v", tok)
			}
			if tok.kind != symbol && tok.kind != text && tok.at < last {
				t.Fatalf("tokens go back at %+v", tok)
			}
			last = tok.at
		}
		lines := strings.Count(src, "\n") + 1
		for _, finding := range scan("m.pp", src, lex(src)) {
			if finding.Line < 1 || finding.Line > lines || finding.Column < 1 || finding.Column > utf8.RuneCountInString(src)+1 {
				t.Fatalf("a place outside: %v", finding)
			}
		}
		(&nodeMatchers{}).collect(lex(src))
	})
}

package limits

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever a file may have wrong: the whole report, with positions.
func TestLoad_rejections(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		refused(t, Options{}, []File{{"f.yaml", []byte(text)}}, want...)
	}
	const head = "domain: d\ndescriptors:\n"
	const entryKeyList = "key, value, values, cidr, not_cidr, prefix_length, group, rate_limit, rate_limits, " +
		"descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or metadata"
	const limitKeyList = "unit, requests_per_unit, unit_multiplier, algorithm, burst, calendar, unlimited, name or " +
		"replaces"
	const units = "second, minute, hour, day, week, month or year"

	// 1: not YAML, or no map at the root.
	f("domain: [d\n", `f.yaml:1:9: the [ here is never closed; write ] where it ends`)
	f("domain: \"d\n", `f.yaml:1:9: the text that begins here has no closing "`)
	f("domain: d\n\tdescriptors:\n", `f.yaml:2:1: a tab stands here; YAML is indented with blanks only, write two for each level`)
	f("- a\n- b\n", `f.yaml:1:1: the file must be a map with domain, descriptors or on_store_failure, not a list; write domain: and descriptors: in the lines above`)
	f("hello\n", `f.yaml:1:1: the file must be a map with domain, descriptors or on_store_failure, not a text (hello)`)
	f("domain: d\n---\ndomain: e\n",
		`f.yaml:2:1: a second YAML document begins here; a file holds one domain, so put each document into a file of its own`)
	f("domain: d\n---\n---\n",
		`f.yaml:2:1: a second YAML document begins here; a file holds one domain, so put each document into a file of its own`)
	f("---\ndomain: d\n---\n# nothing more\n...\n") // an empty one is only said to begin
	f("domain: d\ndescriptors: # caf\xe9\n", `f.yaml:2:19: byte 0xe9 is not UTF-8; save the file as UTF-8`)
	f("domain: d\n\x00", `f.yaml:2:1: control character 0x00 must be written as an escape in double quotes`)
	f("\ufeffdomain: d\r\n")

	// 2: a key that is not a text.
	f("domain: d\n1: x\n", `f.yaml:2:1: domain "d": a key of the file must be a text, not a number (1)`)
	f(head+"- key: a\n  yes: x\n",
		`f.yaml:4:3: domain "d", descriptor a: a key of a descriptor must be a text, not a boolean (yes)`)
	f(head+"- key: a\n  ? [x]\n  : y\n", `f.yaml:5:3: not YAML: found an invalid key for this map`)

	// 3: an unknown key.
	f("domain: d\ndescriptor: []\n",
		`f.yaml:2:1: domain "d": unknown key "descriptor" in the file; did you mean descriptors? Allowed are domain, descriptors or on_store_failure`)
	f(head+"- key: a\n  ratelimit:\n    unit: day\n",
		`f.yaml:4:3: domain "d", descriptor a: unknown key "ratelimit" in a descriptor; did you mean rate_limit? Allowed are `+
			entryKeyList)
	f(
		head+
			"- key: a\n  value: b\n  descriptors:\n  - key: c\n    rate_limit:\n      unit: day\n"+
			"      request_per_unit: 5\n",
		`f.yaml:9:7: domain "d", descriptor a_b.c: unknown key "request_per_unit" in rate_limit; did you mean requests_per_unit? Allowed are `+
			limitKeyList)
	f(head+"- key: a\n  quite_something_else: 1\n",
		`f.yaml:4:3: domain "d", descriptor a: unknown key "quite_something_else" in a descriptor; allowed are `+
			entryKeyList)
	f("domain: d\ndescriptors:\n- key: a\n  metadata:\n    anything: {goes: [here, 1, 2.5, null, yes]}\n") // free

	// 4: a known key in the wrong place.
	f(head+"- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    shadow_mode: true\n",
		`f.yaml:7:5: domain "d", descriptor a: key shadow_mode has no meaning in rate_limit, but in a descriptor; allowed are `+limitKeyList)
	f(head+"- key: a\n  unit: day\n",
		`f.yaml:4:3: domain "d", descriptor a: key unit has no meaning in a descriptor, but in rate_limit; allowed are `+entryKeyList)
	f(head+"- key: a\n  domain: x\n",
		`f.yaml:4:3: domain "d", descriptor a: key domain has no meaning in a descriptor, but in the file; allowed are `+entryKeyList)
	f("domain: d\nkey: a\n",
		`f.yaml:2:1: domain "d": key key has no meaning in the file, but in a descriptor; allowed are domain, descriptors or on_store_failure`)

	// 5: a list element that is no map.
	f(head+"- a\n-\n- [b]\n",
		`f.yaml:3:3: domain "d": descriptors[0] must be a map with a key, not a text (a)`,
		`f.yaml:4:2: domain "d": descriptors[1] must be a map with a key, not null`,
		`f.yaml:5:3: domain "d": descriptors[2] must be a map with a key, not a list`)
	f(head+"- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    replaces: [x]\n",
		`f.yaml:7:16: domain "d", descriptor a: replaces[0] must be a map {name: …}, not a text (x)`)
	f("domain: d\ndescriptors: a\n", `f.yaml:2:14: domain "d": descriptors must be a list, not a text (a)`)

	// 6, 7: values of the wrong type.
	limit := func(line string) string {
		return head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    " + line + "\n"
	}
	rpu := func(value string) string {
		return head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: " + value + "\n"
	}
	const wholeNumber = `f.yaml:6:24: domain "d", descriptor a: requests_per_unit must be a whole number from 0 to 4294967295, not `
	f(rpu("1.5"), wholeNumber+"a number with a fraction (1.5)")
	f(rpu("1e3"), wholeNumber+"a number with a fraction (1e3)")
	f(rpu("many"), wholeNumber+"a text (many)")
	f(rpu("[1]"), wholeNumber+"a list ([…])")
	f(rpu("true"), wholeNumber+"a boolean (true)")
	f(rpu("-1"),
		`f.yaml:6:24: domain "d", descriptor a: requests_per_unit is -1; allowed are whole numbers from 0 to 4294967295`)
	f(rpu("4294967296"),
		`f.yaml:6:24: domain "d", descriptor a: requests_per_unit is 4294967296; allowed are whole numbers from 0 to 4294967295`)
	f(rpu("99999999999999999999999"),
		`f.yaml:6:24: domain "d", descriptor a: requests_per_unit is 99999999999999999999999; allowed are whole numbers from 0 to 4294967295`)
	f(rpu(`"5"`),
		`f.yaml:6:24: domain "d", descriptor a: requests_per_unit must be a number without quotes, not the text "5"`)
	f(limit("unit_multiplier: 0"),
		`f.yaml:7:22: domain "d", descriptor a: unit_multiplier is 0; allowed are whole numbers from 1 to 4294967295`)
	f(head+"- key: a\n  shadow_mode: \"true\"\n",
		`f.yaml:4:16: domain "d", descriptor a: shadow_mode must be true or false without quotes, not the text "true"`)
	f(head+"- key: a\n  quota_mode: 1\n",
		`f.yaml:4:15: domain "d", descriptor a: quota_mode must be true or false, not a number (1)`)
	f(head+"- key: [a]\n", `f.yaml:3:8: domain "d", descriptor descriptors[0]: key must be a text, not a list`)
	f(head+"- key: a\n  value:\n    b: c\n", `f.yaml:5:5: domain "d", descriptor a: value must be a text, not a map`)
	f("domain:\n- d\n", `f.yaml:2:1: domain must be a text, not a list`)
	f(head+"- key: a\n  rate_limit: 5\n",
		`f.yaml:4:15: domain "d", descriptor a: rate_limit must be a map with `+limitKeyList+`, not a number (5)`)
	f("domain: d\non_store_failure: alow\n",
		`f.yaml:2:19: domain "d": on_store_failure "alow" is unknown; did you mean allow? Allowed are error, allow or deny`)

	// 8: no domain.
	f("", `f.yaml:1:1: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f("# nothing\n", `f.yaml:1:1: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f("domain: ''\n", `f.yaml:1:9: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f("domain:\ndescriptors: []\n", `f.yaml:1:8: domain is missing or empty; write the name that requests have, such as domain: shop`)
	f("descriptors:\n- key: ''\n", `f.yaml:1:1: domain is missing or empty; write the name that requests have, such as domain: shop`, `f.yaml:2:3: descriptors[0] needs a key, such as key: remote_address`)

	// 10: no key.
	f(head+"- value: b\n- key: a\n  descriptors:\n  - rate_limit:\n",
		`f.yaml:3:3: domain "d": descriptors[0] needs a key, such as key: remote_address`,
		`f.yaml:6:5: domain "d", descriptor a: descriptors[0] needs a key, such as key: remote_address`)

	// 11: siblings with equal key and value.
	f(head+"- key: a\n  value: b\n- key: a_b\n- key: a\n- key: a\n  value: 'b'\n- key: a\n  value: ''\n",
		`f.yaml:7:3: domain "d", descriptor a_b: this descriptor is already configured in f.yaml:3:3; key and value may stand once in a list`,
		`f.yaml:9:3: domain "d", descriptor a: this descriptor is already configured in f.yaml:6:3; key and value may stand once in a list`)
	f(head+"- key: x\n  descriptors:\n  - key: a\n    value: b*\n  - key: a\n    value: b*\n",
		`f.yaml:7:5: domain "d", descriptor x.a_b*: this descriptor is already configured in f.yaml:5:5; key and value may stand once in a list`)

	// 12: unit missing or unknown.
	f(head+"- key: a\n  rate_limit: {}\n",
		`f.yaml:4:15: domain "d", descriptor a: rate_limit needs a unit (`+units+`) or unlimited: true`,
		`f.yaml:4:15: domain "d", descriptor a: rate_limit needs requests_per_unit (0 blocks everything) or unlimited: true`)
	f(head+"- key: a\n  rate_limit:\n    unit: minuet\n    requests_per_unit: 1\n",
		`f.yaml:5:11: domain "d", descriptor a: unit "minuet" is unknown; did you mean minute? Allowed are `+
			units)
	f(head+"- key: a\n  rate_limit:\n    unit: unknown\n    requests_per_unit: 1\n",
		`f.yaml:5:11: domain "d", descriptor a: unit "unknown" is unknown; allowed are `+units)
	f(head+"- key: a\n  rate_limit:\n    unit: 60\n    requests_per_unit: 1\n",
		`f.yaml:5:11: domain "d", descriptor a: unit "60" is unknown; allowed are `+units)

	// 13: unlimited together with a limit.
	f(
		head+
			"- key: a\n  rate_limit:\n    unlimited: true\n    unit: day\n    requests_per_unit: 5\n"+
			"    unit_multiplier: 2\n",
		`f.yaml:6:11: domain "d", descriptor a: unlimited: true takes no unit, but unit is "day"`,
		`f.yaml:7:24: domain "d", descriptor a: unlimited: true takes no requests_per_unit, but it is 5`,
		`f.yaml:8:22: domain "d", descriptor a: unlimited: true takes no unit_multiplier, but it is 2`)
	f(head+"- key: a\n  rate_limit:\n    unlimited: true\n    unit: nonsense\n",
		`f.yaml:6:11: domain "d", descriptor a: unlimited: true takes no unit, but unit is "nonsense"`)

	// 14: no requests_per_unit.
	f(head+"- key: a\n  rate_limit:\n    unit: day\n",
		`f.yaml:5:5: domain "d", descriptor a: rate_limit needs requests_per_unit (0 blocks everything) or unlimited: true`)

	// 15, 16: items of replaces.
	f(limit("replaces: [{name: ''}, {}]"),
		`f.yaml:7:23: domain "d", descriptor a: replaces[0] needs the name of a rule, such as {name: hourly}`,
		`f.yaml:7:28: domain "d", descriptor a: replaces[1] needs the name of a rule, such as {name: hourly}`)
	f(limit("name: n\n    replaces:\n    - name: n"),
		`f.yaml:9:13: domain "d", descriptor a: the rule replaces itself: "n" is its own name; write that of another rule`)
	f(limit("replaces:\n    - nam: n"),
		`f.yaml:8:7: domain "d", descriptor a: unknown key "nam" in an item of replaces; did you mean name? Only name is allowed`)

	// 17: share_threshold without a wildcard.
	f(head+"- key: a\n  value: b\n  share_threshold: true\n",
		`f.yaml:5:20: domain "d", descriptor a_b: share_threshold needs a value with a wildcard; "b" has no *`)
	f(head+"- key: a*\n  share_threshold: true\n",
		`f.yaml:4:20: domain "d", descriptor a*: share_threshold needs a value with a wildcard; a descriptor without value has no *`)
	f(head+"- key: a\n  value: 'b\\*'\n  share_threshold: true\n",
		`f.yaml:5:20: domain "d", descriptor a_b\*: share_threshold needs a value with a wildcard; "b\\*" has no *`)
	f(head + "- key: a\n  value: '*b'\n  share_threshold: true\n")

	// 18: metadata that does not convert.
	f(head+"- key: a\n  metadata: 5\n",
		`f.yaml:4:13: domain "d", descriptor a: metadata must be a map, not a number (5)`)
	f(head+"- key: a\n  metadata:\n    x:\n    - 1: y\n      z: .nan\n",
		`f.yaml:6:7: domain "d", descriptor a: a key of metadata.x[0] must be a text, not a number (1); put it in quotes`,
		`f.yaml:7:10: domain "d", descriptor a: metadata.x[0].z is .nan, which JSON can't hold; put it in quotes`)

	// Repeated keys (3.2).
	f(head+"- key: a\n  value: b\n  key: c\n",
		`f.yaml:5:3: domain "d", descriptor c_b: key key stands twice in a descriptor; the first is at line 3, column 3`)
	f("domain: d\ndomain: e\n",
		`f.yaml:2:1: domain "e": key domain stands twice in the file; the first is at line 1, column 1`)
	f(head + "- key: a\n  metadata: {a: 18446744073709551615, b: -9223372036854775808, c: '18446744073709551616'}\n")
	f(head+"- key: a\n  metadata: {x: 18446744073709551616, y: -9223372036854775809, z: 0x10000000000000000}\n",
		`f.yaml:4:17: domain "d", descriptor a: metadata.x is 18446744073709551616, which does not fit into 64 bits; put it in quotes to keep its digits`,
		`f.yaml:4:42: domain "d", descriptor a: metadata.y is -9223372036854775809, which does not fit into 64 bits; put it in quotes to keep its digits`,
		`f.yaml:4:67: domain "d", descriptor a: metadata.z is 0x10000000000000000, which does not fit into 64 bits; put it in quotes to keep its digits`)
	f(head+"- key: a\n  metadata:\n    x: 1\n    x: 2\n",
		`f.yaml:6:5: domain "d", descriptor a: key "x" stands twice in metadata`)

	// Aliases.
	const quotes = "a text that begins with * must stand in quotes: without them it is an alias"
	f("domain: *x\n", `f.yaml:1:9: alias *x has no anchor &x before it; `+quotes)
	f(head+"- key: a\n  value: *\n", `f.yaml:4:10: `+quotes)
	f(head+"- key: a\n  value: *\n  shadow_mode: true\n", `f.yaml:4:10: `+quotes)
	f(head+"- key: a\n  value: **\n", `f.yaml:4:10: `+quotes)
	f(head+"- {key: a, value: *}\n", `f.yaml:3:19: `+quotes)
	f(head+"- {value: *, key: a}\n", `f.yaml:3:11: `+quotes)
	f(head+"- key: a\n  value: */x\n", `f.yaml:4:10: alias */x has no anchor &/x before it; `+quotes)
	f(head + "- {key: &1 a, value: *1}\n- key: &true b\n  value: *true\n")
	f("domain: d\ndescriptors: &x\n- key: a\n  descriptors: *x\n", `f.yaml:4:16: alias *x stands inside its own anchor`)
	f(head+"- &x {key: a}\n- <<: *x\n  <<: *x\n",
		`f.yaml:5:3: << stands twice in one map; one may take a list: <<: [*a, *b]`)
	f(head+"- <<: 5\n  key: a\n", `f.yaml:3:7: << takes a map or a list of maps, not a number`)
	f("domain: !domain d\n", `f.yaml:1:9: tag !domain is not known; allowed are !!str, !!int, !!bool, !!float, !!null, !!map or !!seq`)
}

// refused loads files and compares the whole report; no lines mean that the files are accepted.
func refused(t *testing.T, o Options, files []File, want ...string) {
	t.Helper()
	_, _, err := Load(context.Background(), files, o)
	var got []string
	if r, ok := errors.AsType[*Rejection](err); ok {
		got = strings.Split(r.Error(), "\n")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%.2000s\nreport (-want +got):\n%s", files[len(files)-1].Text, d)
	}
}

// All problems of all files are in one report, in order.
func TestLoad_allProblems(t *testing.T) {
	refused(t, Options{}, []File{
		{"b.yaml", []byte(
			"domain: d\ndescriptors:\n- kee: a\n- key: b\n  rate_limit: {unit: dya, requests_per_unit: -5}\n")},
		{"c.yaml", []byte("domain: [\n")},
		{"a.yaml", []byte("domain: d\n")},
	},
		`b.yaml:1:9: domain "d": the domain is already configured in a.yaml:1:9; MERGE_DOMAIN_CONFIG=true lets files share one`,
		`b.yaml:3:3: domain "d", descriptor descriptors[0]: unknown key "kee" in a descriptor; did you mean key? Allowed are key, value, values, cidr, not_cidr, prefix_length, group, rate_limit, rate_limits, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or metadata`,
		`b.yaml:3:3: domain "d": descriptors[0] needs a key, such as key: remote_address`,
		`b.yaml:5:22: domain "d", descriptor b: unit "dya" is unknown; did you mean day? Allowed are second, minute, hour, day, week, month or year`,
		`b.yaml:5:46: domain "d", descriptor b: requests_per_unit is -5; allowed are whole numbers from 0 to 4294967295`,
		`c.yaml:1:9: the [ here is never closed; write ] where it ends`,
	)
}

// Files of one domain merge at the top level only.
func TestLoad_merge(t *testing.T) {
	o := Options{Settings: Settings{MergeDomains: true}}
	a := File{"a.yaml", []byte("domain: d\non_store_failure: deny\ndescriptors:\n- key: a\n  value: x*\n")}
	refused(t, o, []File{a, {"b.yaml", []byte("domain: d\non_store_failure: allow\n")}},
		`b.yaml:2:19: domain "d": on_store_failure is allow here and deny in a.yaml:2:19; files of one domain must agree`)
	refused(t, o, []File{a, {"b.yaml", []byte("domain: d\ndescriptors:\n- key: a\n  value: x*\n")}},
		`b.yaml:3:3: domain "d", descriptor a_x*: this descriptor is already configured in a.yaml:4:3; key and value may stand once in a list`)

	r := mustLoad(t, o, File{"b.yaml",
		[]byte("domain: d\ndescriptors:\n- {key: a, value: 'xy*', " + perMinute("2") +
			"}\n- {key: b, " + perMinute("3") + "}\n")}, a)
	d := r.Domain("d")
	if d.OnStoreFailure != FailureDeny || len(d.Files) != 2 {
		t.Errorf("on_store_failure %v, files %v", d.OnStoreFailure, d.Files)
	}
	if got := walk(t, r, "(a,xyz)"); got != "none" { // a.yaml's wildcard comes first
		t.Errorf("the wildcard of the second file goes first: %s", got)
	}
	if got := walk(t, r, "(b,1)"); got != "3 per MINUTE | d_b_1_1699999980 | d.b" {
		t.Error(got)
	}
}

// checkWarnings has the rules of one file loaded, f.yaml, and compares what they are warned of.
func checkWarnings(t *testing.T, text string, want ...string) {
	t.Helper()
	_, warnings, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}}, Options{})
	if err != nil {
		t.Errorf("refused: %v", err)
		return
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s\nwarnings (-want +got):\n%s", text, d)
	}
}

func TestLoad_warnings(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		checkWarnings(t, "domain: d\ndescriptors:\n"+list, want...)
	}
	limit := func(more string) string {
		return "  rate_limit: {unit: day, requests_per_unit: 1" + more + "}\n"
	}
	f("- key: a\n" + limit(""))
	f("- key: a\n"+limit(", name: first")+"- key: b\n"+limit(", name: first")+
		"- key: c\n"+limit(", replaces: [{name: frist}, {name: other}]"),
		`f.yaml:6:55: domain "d", descriptor b: the rule in f.yaml:4:55 has the name "first" too; what replaces one replaces both`,
		`f.yaml:8:67: domain "d", descriptor c: no rule of this domain has the name "frist"; did you mean first?`,
		`f.yaml:8:82: domain "d", descriptor c: no rule of this domain has the name "other"`)
	f("- key: a\n"+limit(", name: x1, replaces: [{name: x2}]")+"- key: b\n"+
		limit(", name: x2, replaces: [{name: x3}]")+"- key: c\n"+limit(", name: x3, replaces: [{name: x1}]"),
		`f.yaml:8:77: domain "d", descriptor c: rules replace each other in a circle (x1 replaces x2 replaces x3 replaces x1); a request that matches them all has no limit left`)
	f("- key: a\n  shadow_mode: yes\n  quota_mode: on\n  detailed_metric: true\n",
		`f.yaml:4:16: domain "d", descriptor a: shadow_mode has no effect on a descriptor without rate_limit`,
		`f.yaml:5:15: domain "d", descriptor a: quota_mode has no effect on a descriptor without rate_limit`,
		`f.yaml:6:20: domain "d", descriptor a: detailed_metric has no effect on a descriptor without rate_limit`)
	f("- key: a\n  quota_mode: true\n  rate_limit: {unlimited: true}\n",
		`f.yaml:4:15: domain "d", descriptor a: quota_mode has no effect on an unlimited rule`)
	f("- key: a\n  value: x*\n- key: b\n  value: xy*\n- key: a\n  value: x*y\n- key: a\n  value: 'x\\**'\n- key: a\n"+
		"  value: '*z'\n",
		`f.yaml:8:10: domain "d", descriptor a_x*y: "x*y" never matches: "x*" in f.yaml:4:10 takes everything before it`,
		`f.yaml:10:10: domain "d", descriptor a_x\**: "x\\**" never matches: "x*" in f.yaml:4:10 takes everything before it`)
	f("- key: e*\n"+limit(""),
		`f.yaml:3:3: domain "d", descriptor e*: the star in key "e*" is an ordinary character; wildcards work in values only`)
}

// Keys and values that no request has in all likelihood are warned about; what only looks similar is not.
func TestLoad_unlikelyValues(t *testing.T) {
	f := func(entry string, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = `f.yaml:3:` + want[i]
		}
		checkWarnings(t, "domain: d\ndescriptors:\n- {"+entry+", rate_limit: {unit: day, requests_per_unit: 1}}\n", want...)
	}
	f("key: ' a'", `4: domain "d", descriptor  a: key " a" has blanks around it, which a request must have too; write a`)
	f(`key: a, value: "b\t"`, `19: domain "d", descriptor "a_b\t": value "b\t" has blanks around it, which a request `+
		`must have too; write b`)
	f("key: a, values: [b, 'c ']", `24: domain "d", descriptor a_{b,…}: values "c " has blanks around it, which a `+
		`request must have too; write c`)
	f("key: a, value: b c")

	f("key: ip, value: 10.1.0.0/8", `20: domain "d", descriptor ip_10.1.0.0/8: value "10.1.0.0/8" is compared as a `+
		`text; a network stands in cidr: [10.0.0.0/8]`)
	f("key: ip, values: ['2001:db8::/32']", `22: domain "d", descriptor ip_{2001:db8::/32}: values "2001:db8::/32" is `+
		`compared as a text; a network stands in cidr: [2001:db8::/32]`)
	f("key: masked_remote_address, value: 10.0.0.0/8") // Envoy sends a network
	f("key: path, value: /10.0.0.0/8")
	f("key: ip, value: 10.0.0.1")

	for value, sign := range map[string]string{"^/api": "^", "/api$": "$", `/api/\d`: `\d`, `10\.0\.0\.1`: `\.`,
		".+": ".+", "/v[12]/x": "[12]", "(get|post)": "(get|post)", "^/api/.*$": "^"} {
		f("key: p, value: '"+value+"'", `19: domain "d", descriptor p_`+value+`: value `+Quote(value)+` looks like a `+
			`regular expression (`+sign+`), but only * is a pattern; write an entry for each text, with * for any characters`)
	}
	for _, value := range []string{"10.0.*", "shop.*", "*.example.com", "a+b", "a|b", "f(x)", "a^b", "US$ 5", "[]",
		"[2001:db8::1]:443", `C:\x`, `a\*b`, "Mozilla/5.0 (X11; Linux)", "{id}"} {
		f("key: p, value: '" + value + "'")
	}
}

// Messages stay on one line of bounded length, and a report of bounded size.
func TestLoad_longTexts(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	_, _, err := Load(context.Background(),
		[]File{{"f.yaml", []byte("domain: d\ndescriptors:\n- key: \"a\\nb\"\n  value: " + long +
			"\n  unit: 1\n- key: a\n  " + long + ": 1\n  shadow_mode: " + long + "\n  quota_mode: x\n\n    y\n")}},
		Options{})
	for _, line := range strings.Split(err.Error(), "\n") {
		if !strings.HasPrefix(line, "f.yaml:") || len(line) > 500 {
			t.Errorf("%d bytes: %.200s", len(line), line)
		}
	}
	_, _, err = Load(context.Background(),
		[]File{{"f.yaml", []byte("domain: d\ndescriptors:\n" + strings.Repeat("- value: x\n", 1500))}}, Options{})
	refusal, _ := errors.AsType[*Rejection](err)
	if n := len(refusal.Problems); n != 1001 ||
		refusal.Problems[1000].Message != "500 further problems are not listed" {
		t.Errorf("%d problems, the last: %v", n, refusal.Problems[n-1])
	}
}

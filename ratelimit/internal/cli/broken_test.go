package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// brokenFile is a file that check refuses.
type brokenFile struct {
	name, text string
	want       string // the messages, without the file's name
	// alone says why the schema, which editors check files by, accepts the file; empty where it refuses it too.
	alone string
}

// notYAML is why the schema never sees a file: an editor marks it before.
const notYAML = "no YAML"

// brokenFiles are what people get wrong.
var brokenFiles = []brokenFile{
	{"a tab",
		"domain: d\ndescriptors:\n  - key: user\n\trate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:1: a tab stands here; YAML is indented with blanks only, write two for each level",
		notYAML},
	{"no blank after a colon",
		"domain: d\ndescriptors:\n  - key:user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:3:5: a blank is missing after the colon of key; write key: user",
		notYAML},
	{"no blank after a colon, deep",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit:\n      unit:minute\n      requests_per_unit: 5\n",
		"f.yaml:5:7: a blank is missing after the colon of unit; write unit: minute",
		notYAML},
	{"an item that is no map",
		"domain: d\ndescriptors:\n  - key:user\n",
		"f.yaml:3:5: domain \"d\": descriptors[0] must be a map with a key, not a text (key:user); a blank is " +
			"missing after the colon of key; write key: user",
		""},
	{"indented too deep",
		"domain: d\ndescriptors:\n  - key: user\n     rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:6: this line is indented by 5, which fits no line above; want 4",
		notYAML},
	{"indented too little",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: minute\n     requests_per_unit: 5\n",
		"f.yaml:6:6: this line is indented by 5, which fits no line above; want 4 or 6",
		notYAML},
	{"no descriptors:",
		"domain: d\n- key: user\n",
		"f.yaml:2:1: a list of descriptors begins here without descriptors: before it; write descriptors: in the " +
			"line above",
		notYAML},
	{"no descriptors: below an entry",
		"domain: d\ndescriptors:\n  - key: path\n    value: /login\n    - key: user\n",
		"f.yaml:5:5: a list of descriptors begins here without descriptors: before it; write descriptors: in the " +
			"line above",
		notYAML},
	{"a brace left open",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5\n  - key: path\n",
		"f.yaml:4:17: the { here is never closed; write } where it ends",
		notYAML},
	{"a bracket left open",
		"domain: d\ndescriptors:\n  - key: ip\n    cidr: [10.0.0.0/8\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:11: the [ here is never closed; write ] where it ends",
		notYAML},
	{"a quote left open",
		"domain: d\ndescriptors:\n  - key: \"user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:3:10: the text that begins here has no closing \"",
		notYAML},
	{"a list at the root",
		"- key: user\n",
		"f.yaml:1:1: the file must be a map with domain, descriptors or on_store_failure, not a list; write " +
			"domain: and descriptors: in the lines above",
		""},
	{"a map in place of the list",
		"domain: d\ndescriptors:\n  key: user\n",
		"f.yaml:3:3: domain \"d\": descriptors must be a list, not a map; begin each item with a dash, such as - " +
			"key: user",
		""},
	{"no domain",
		"descriptors:\n  - key: user\n",
		"f.yaml:1:1: domain is missing or empty; write the name that requests have, such as domain: shop",
		""},
	{"two documents",
		"domain: d\n---\ndomain: e\n",
		"f.yaml:2:1: a second YAML document begins here; a file holds one domain, so put each document into a " +
			"file of its own",
		"a second document, which an editor takes for a file of its own"},
	{"a star without quotes",
		"domain: d\ndescriptors:\n  - key: path\n    value: *\n",
		"f.yaml:4:12: a text that begins with * must stand in quotes: without them it is an alias",
		notYAML},
	{"a misspelled key at the root",
		"domain: d\ndescriptor: []\n",
		"f.yaml:2:1: domain \"d\": unknown key \"descriptor\" in the file; did you mean descriptors? Allowed are " +
			"domain, descriptors or on_store_failure",
		""},
	{"a misspelled key of an entry",
		"domain: d\ndescriptors:\n  - key: user\n    ratelimit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:5: domain \"d\", descriptor user: unknown key \"ratelimit\" in a descriptor; did you mean " +
			"rate_limit? Allowed are key, value, values, cidr, not_cidr, prefix_length, group, rate_limit, " +
			"rate_limits, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or " +
			"metadata",
		""},
	{"a misspelled key of a limit",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, request_per_unit: 5}\n",
		"f.yaml:4:32: domain \"d\", descriptor user: unknown key \"request_per_unit\" in rate_limit; did you mean " +
			"requests_per_unit? Allowed are unit, requests_per_unit, unit_multiplier, algorithm, burst, calendar, " +
			"unlimited, name or replaces",
		""},
	{"a key of another level",
		"domain: d\ndescriptors:\n  - key: user\n    unit: minute\n    requests_per_unit: 5\n",
		"f.yaml:4:5: domain \"d\", descriptor user: key unit has no meaning in a descriptor, but in rate_limit; " +
			"allowed are key, value, values, cidr, not_cidr, prefix_length, group, rate_limit, rate_limits, " +
			"descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or metadata\n" +
			"f.yaml:5:5: domain \"d\", descriptor user: key requests_per_unit has no meaning in a descriptor, but in " +
			"rate_limit; allowed are key, value, values, cidr, not_cidr, prefix_length, group, rate_limit, " +
			"rate_limits, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or " +
			"metadata",
		""},
	{"a key twice",
		"domain: d\ndescriptors:\n  - key: user\n    key: path\n",
		"f.yaml:4:5: domain \"d\", descriptor path: key key stands twice in a descriptor; the first is at line 3, " +
			"column 5",
		"a key twice, which an editor marks by itself"},
	{"no key",
		"domain: d\ndescriptors:\n  - value: ann\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:3:5: domain \"d\": descriptors[0] needs a key, such as key: remote_address",
		""},
	{"an unknown unit",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: min, requests_per_unit: 5}\n",
		"f.yaml:4:24: domain \"d\", descriptor user: unit \"min\" is unknown; allowed are second, minute, hour, day, " +
			"week, month or year",
		""},
	{"a plural",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: Minutes, requests_per_unit: 5}\n",
		"f.yaml:4:24: domain \"d\", descriptor user: unit \"Minutes\" is unknown; did you mean minute? Allowed are " +
			"second, minute, hour, day, week, month or year",
		""},
	{"no unit",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {requests_per_unit: 5}\n",
		"f.yaml:4:18: domain \"d\", descriptor user: rate_limit needs a unit (second, minute, hour, day, week, " +
			"month or year) or unlimited: true",
		""},
	{"no number",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute}\n",
		"f.yaml:4:18: domain \"d\", descriptor user: rate_limit needs requests_per_unit (0 blocks everything) or " +
			"unlimited: true",
		""},
	{"a number in quotes",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: \"5\"}\n",
		"f.yaml:4:51: domain \"d\", descriptor user: requests_per_unit must be a number without quotes, not the " +
			"text \"5\"",
		""},
	{"a negative number",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: -5}\n",
		"f.yaml:4:51: domain \"d\", descriptor user: requests_per_unit is -5; allowed are whole numbers from 0 to " +
			"4294967295",
		""},
	{"a fraction",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 0.5}\n",
		"f.yaml:4:51: domain \"d\", descriptor user: requests_per_unit must be a whole number from 0 to " +
			"4294967295, not a number with a fraction (0.5)",
		""},
	{"a switch in quotes",
		"domain: d\ndescriptors:\n  - key: user\n    shadow_mode: \"true\"\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:18: domain \"d\", descriptor user: shadow_mode must be true or false without quotes, not the " +
			"text \"true\"",
		""},
	{"unlimited and a limit",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unlimited: true, unit: minute}\n",
		"f.yaml:4:41: domain \"d\", descriptor user: unlimited: true takes no unit, but unit is \"minute\"",
		""},
	{"an unknown algorithm",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: leaky_bucket}\n",
		"f.yaml:4:65: domain \"d\", descriptor user: algorithm \"leaky_bucket\" is unknown; allowed are " +
			"fixed_window, sliding_window or token_bucket",
		""},
	{"a burst without a bucket",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5, burst: 7}\n",
		"f.yaml:4:61: domain \"d\", descriptor user: burst needs algorithm: token_bucket, but algorithm is " +
			"fixed_window",
		""},
	{"a zone for minutes",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5, calendar: UTC}\n",
		"f.yaml:4:64: domain \"d\", descriptor user: calendar takes unit day, week, month or year, not \"minute\"",
		""},
	{"an unknown zone",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 5, calendar: Berlin}\n",
		"f.yaml:4:61: domain \"d\", descriptor user: calendar \"Berlin\" is no IANA time zone, such as UTC or " +
			"Europe/Berlin",
		"zones"},
	{"an unknown mode",
		"domain: d\non_store_failure: alow\n",
		"f.yaml:2:19: domain \"d\": on_store_failure \"alow\" is unknown; did you mean allow? Allowed are error, " +
			"allow or deny",
		""},
	{"a value and values",
		"domain: d\ndescriptors:\n  - key: user\n    value: ann\n    values: [bob]\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:5:5: domain \"d\", descriptor user_ann: value and values exclude each other; the first is at line " +
			"4, column 5",
		""},
	{"a limit and limits",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limits: [{unit: hour, requests_per_unit: 9}]\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:5:5: domain \"d\", descriptor user: rate_limit and rate_limits exclude each other; the first is at " +
			"line 4, column 5",
		""},
	{"limits of one window",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limits: [{unit: hour, requests_per_unit: 9}, {unit: hour, requests_per_unit: 5}]\n",
		"f.yaml:4:56: domain \"d\", descriptor user: rate_limits[1] counts what rate_limits[0] counts (HOUR, " +
			"fixed_window); items must differ in unit, unit_multiplier, algorithm or calendar",
		"items that are compared with each other"},
	{"a network as a text",
		"domain: d\ndescriptors:\n  - key: ip\n    cidr: 10.0.0.0/8\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:11: domain \"d\", descriptor ip: cidr must be a list: [10.0.0.0/8]",
		""},
	{"an address that is no network",
		"domain: d\ndescriptors:\n  - key: ip\n    cidr: [10.0.0/8]\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:12: domain \"d\", descriptor ip_{10.0.0/8}: cidr[0] \"10.0.0/8\" is no IP prefix; write an address " +
			"and its length, such as 10.0.0.0/8 or 2001:db8::/32",
		"networks"},
	{"bits beyond the prefix",
		"domain: d\ndescriptors:\n  - key: ip\n    cidr: [10.1.0.0/8]\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:12: domain \"d\", descriptor ip_{10.1.0.0/8}: cidr[0] 10.1.0.0/8 has bits beyond its length; " +
			"write 10.0.0.0/8",
		"networks"},
	{"a prefix length without network",
		"domain: d\ndescriptors:\n  - key: ip\n    prefix_length: {v4: 24}\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:21: domain \"d\", descriptor ip: prefix_length needs cidr or not_cidr",
		""},
	{"a group without values",
		"domain: d\ndescriptors:\n  - key: user\n    group: all\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:12: domain \"d\", descriptor user: group needs values with share_threshold",
		""},
	{"a value twice",
		"domain: d\ndescriptors:\n  - key: user\n    value: ann\n  - key: user\n    value: ann\n",
		"f.yaml:5:5: domain \"d\", descriptor user_ann: this descriptor is already configured in " +
			"f.yaml:3:5; key and value may stand once in a list",
		"entries that are compared with each other"},
	{"a shared limit without wildcard",
		"domain: d\ndescriptors:\n  - key: user\n    value: ann\n    share_threshold: true\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:5:22: domain \"d\", descriptor user_ann: share_threshold needs a value with a wildcard; \"ann\" has " +
			"no *",
		"wildcards"},
	{"a rule that replaces itself",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {name: n, unit: minute, requests_per_unit: 5, replaces: [{name: n}]}\n",
		"f.yaml:4:81: domain \"d\", descriptor user: the rule replaces itself: \"n\" is its own name; write that of another rule",
		"names"},
	{"a text at the root",
		"hello\n",
		"f.yaml:1:1: the file must be a map with domain, descriptors or on_store_failure, not a text (hello)",
		""},
	{"an empty file",
		"",
		"f.yaml:1:1: domain is missing or empty; write the name that requests have, such as domain: shop",
		""},
	{"an empty domain",
		"domain: \"\"\n",
		"f.yaml:1:9: domain is missing or empty; write the name that requests have, such as domain: shop",
		""},
	{"a template",
		"domain: {{ .Values.domain }}\ndescriptors: []\n",
		"f.yaml:1:9: this is a template, not a file of rules: {{ stands here; check what it makes, such as " +
			"the output of helm template",
		notYAML},
	{"bytes that are no UTF-8",
		"domain: caf\xe9\n",
		"f.yaml:1:12: byte 0xe9 is not UTF-8; save the file as UTF-8",
		"bytes, which an editor reads in its own way"},
	{"a second colon",
		"domain: d\ndescriptors:\n  - key: user: ann\n",
		"f.yaml:3:10: a second colon stands in this line; put a text with a colon and a blank in quotes, and " +
			"each key in a line of its own",
		notYAML},
	{"a sign that begins no text",
		"domain: d\ndescriptors:\n  - key: @user\n",
		"f.yaml:3:10: no text begins with '@'; put it in quotes",
		notYAML},
	{"a tag of a program",
		"domain: d\ndescriptors:\n  - key: !name user\n",
		"f.yaml:3:10: tag !name is not known; allowed are !!str, !!int, !!bool, !!float, !!null, !!map or " +
			"!!seq",
		"tags"},
	{"an empty key",
		"domain: d\ndescriptors:\n  - key: \"\"\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:3:5: domain \"d\": descriptors[0] needs a key, such as key: remote_address",
		""},
	{"an empty item",
		"domain: d\ndescriptors:\n  -\n",
		"f.yaml:3:4: domain \"d\": descriptors[0] must be a map with a key, not null",
		""},
	{"a key that is a number",
		"domain: d\ndescriptors:\n  - key: user\n    7: seven\n",
		"f.yaml:4:5: domain \"d\", descriptor user: a key of a descriptor must be a text, not a number (7)",
		""},
	{"a value that is a map",
		"domain: d\ndescriptors:\n  - key: user\n    value: {name: ann}\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:13: domain \"d\", descriptor user: value must be a text, not a map",
		""},
	{"a limit that is a number",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: 5\n",
		"f.yaml:4:17: domain \"d\", descriptor user: rate_limit must be a map with unit, requests_per_unit, " +
			"unit_multiplier, algorithm, burst, calendar, unlimited, name or replaces, not a number (5)",
		""},
	{"a number that is too large",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 4294967296}\n",
		"f.yaml:4:51: domain \"d\", descriptor user: requests_per_unit is 4294967296; allowed are whole " +
			"numbers from 0 to 4294967295",
		""},
	{"unlimited and a number",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unlimited: true, requests_per_unit: 5}\n",
		"f.yaml:4:54: domain \"d\", descriptor user: unlimited: true takes no requests_per_unit, but it is 5",
		""},
	{"replaces with texts",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5, replaces: [hourly]}\n",
		"f.yaml:4:65: domain \"d\", descriptor user: replaces[0] must be a map {name: …}, not a text (hourly)",
		""},
	{"replaces without name",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: \"\"}]}\n",
		"f.yaml:4:72: domain \"d\", descriptor user: replaces[0] needs the name of a rule, such as {name: " +
			"hourly}",
		""},
	{"metadata that is a list",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n    metadata: [a]\n",
		"f.yaml:5:15: domain \"d\", descriptor user: metadata must be a map, not a list",
		""},
	{"metadata that JSON cannot hold",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n    metadata: {share: .inf}\n",
		"f.yaml:5:23: domain \"d\", descriptor user: metadata.share is .inf, which JSON can't hold; put it " +
			"in quotes",
		"numbers of YAML alone"},
	{"values with a star",
		"domain: d\ndescriptors:\n  - key: user\n    values: [ann, b*]\n    rate_limit: {unit: minute, requests_per_unit: 5}\n",
		"f.yaml:4:19: domain \"d\", descriptor user_{ann,…}: values[1] \"b*\" has a wildcard; write \\* for " +
			"a star, or an entry with value: b*",
		"wildcards"},
	{"an empty list of limits",
		"domain: d\ndescriptors:\n  - key: user\n    rate_limits: []\n",
		"f.yaml:4:18: domain \"d\", descriptor user: rate_limits is empty; leave it out for an entry without " +
			"limit",
		""},
}

// Each of brokenFiles is refused with its place, what is allowed and what would be right.
func TestCheck_brokenFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	const mark = "error loading rate limit configs: "
	for _, b := range brokenFiles {
		if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		status := (Program{}).run(t.Context(), []string{"ratelimit", "check", file}, nil, &out, &out)
		var got []string
		for line := range strings.Lines(strings.ReplaceAll(out.String(), file, "f.yaml")) {
			if message, ok := strings.CutPrefix(line, mark); ok {
				got = append(got, strings.TrimSuffix(message, "\n"))
			}
		}
		if d := cmp.Diff(b.want, strings.Join(got, "\n")); d != "" || status != exitFailed {
			t.Errorf("%s: exit status %d, %s", b.name, status, d)
		}
	}
	if len(brokenFiles) < 30 {
		t.Errorf("only %d files", len(brokenFiles))
	}
}

// The schema refuses what check refuses, but for the files that say why not.
func TestSchema_brokenFiles(t *testing.T) {
	s := ruleSchema(t)
	for _, b := range brokenFiles {
		doc, ok := asJSON(b.text)
		switch refused := ok && s.Validate(doc) != nil; {
		case b.alone == notYAML && ok && !refused:
			t.Errorf("%s: the file is YAML, and the schema accepts it", b.name)
		case b.alone != notYAML && refused != (b.alone == ""):
			t.Errorf("%s: the schema refuses it: %v, want %v (%s)", b.name, refused, b.alone == "", b.alone)
		}
	}
}

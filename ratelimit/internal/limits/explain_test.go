package limits

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

// explained is a configuration with one of everything that a walk can meet.
const explained = `domain: edge
descriptors:
  - key: user
    value: alice
    descriptors:
      - key: path
        rate_limit:
          unit: minute
          requests_per_unit: 5
          unit_multiplier: 10
          name: paths
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 100
    descriptors:
      - key: method
        rate_limit:
          unit: day
          requests_per_unit: 7
          name: methods
          replaces:
            - name: paths
  - key: file
    value: /img/*
    share_threshold: true
    shadow_mode: true
    rate_limit:
      unit: second
      requests_per_unit: 3
  - key: file
    value: '*.js'
    value_to_metric: true
    quota_mode: true
    rate_limit:
      unit: second
      requests_per_unit: 4
  - key: health
  - key: admin
    rate_limit:
      unlimited: true
`

// Bytes of a request that are no UTF-8 leave as \xNN, in the text as in JSON.
func TestExplain_bytes(t *testing.T) {
	r := mustLoad(t, Options{}, File{"edge.yaml", []byte(explained)})
	for _, x := range []Explanation{
		r.ExplainAt("edge", []rls.Entry{{Key: "user", Value: "\xffann"}}, 1700000000),
		r.ExplainAt("ed\xffge", []rls.Entry{{Key: "us\xffer", Value: "ann"}}, 1700000000),
	} {
		text := x.Text()
		if !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError) || !strings.Contains(text, `\xff`) {
			t.Errorf("%q", text)
		}
	}
}

func TestExplain_text(t *testing.T) {
	r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, File{"edge.yaml", []byte(explained)})
	f := func(descriptor, want string) {
		t.Helper()
		x := r.ExplainAt("edge", entriesOf(t, descriptor), 1700000000)
		if d := cmp.Diff(want[1:], x.Text()); d != "" {
			t.Errorf("%s (-want +got):\n%s", descriptor, d)
		}
	}
	f("(user,alice)(path,/a)", `
domain      edge
descriptor  (user, alice) (path, /a)

1. user = "alice"
   + exact "alice"  edge.yaml:3:5
   => user_alice: exact value

2. path = "/a"
   + any value  edge.yaml:6:9
   => user_alice.path: entry for any value; no exact value or wildcard matches

result      5 per 10 × MINUTE
name        paths
reason      user_alice.path (edge.yaml:6:9) decides: 5 per 10 × MINUTE
counter key edge_user_alice_path_/a_1699999800
metric key  edge.user_alice.path
note        dropped when another descriptor of the same request matches user.method (edge.yaml:17:9), which replaces "paths"
`)
	f("(user,bob)(method,GET)", `
domain      edge
descriptor  (user, bob) (method, GET)

1. user = "bob"
   - exact (1 with other values)
   + any value  edge.yaml:12:5
   => user: entry for any value; no exact value or wildcard matches

2. method = "GET"
   + any value  edge.yaml:17:9
   => user.method: entry for any value; no exact value or wildcard matches

result      7 per DAY
name        methods
reason      user.method (edge.yaml:17:9) decides: 7 per DAY
counter key edge_user_bob_method_GET_1699920000
metric key  edge.user.method
note        the rate_limit of user (edge.yaml:12:5) is passed by: the descriptor goes deeper
note        replaces the rules named "paths" when they match another descriptor of the same request
`)
	f("(user,alice)(method,GET)", `
domain      edge
descriptor  (user, alice) (method, GET)

1. user = "alice"
   + exact "alice"  edge.yaml:3:5
   => user_alice: exact value

2. method = "GET"
   => nothing: no entry here has the key "method"

result      no limit (no match)
reason      entry 2, ("method", "GET"): no entry here has the key "method"
note        the keys at this level are: path
note        user (edge.yaml:12:5) would lead to a rate_limit in edge.yaml:17:9, but user_alice was chosen at entry 1 and stays chosen: there is no backtracking
`)
	f("(file,/img/a.js)", `
domain      edge
descriptor  (file, /img/a.js)

1. file = "/img/a.js"
   + wildcard "/img/*"  edge.yaml:24:5
   => file_/img/*: first wildcard in configuration order that matches; no exact value does

result      3 per SECOND
reason      file_/img/* (edge.yaml:24:5) decides: 3 per SECOND
counter key edge_file_/img/*_1700000000
metric key  edge.file_/img/
note        shadow_mode: over the limit is counted but answered OK
note        share_threshold: all values that match "/img/*" at entry 1 share one counter
`)
	f("(file,b.js)", `
domain      edge
descriptor  (file, b.js)

1. file = "b.js"
   - wildcard "/img/*"  edge.yaml:24:5
   + wildcard "*.js"  edge.yaml:31:5
   => file_*.js: first wildcard in configuration order that matches; no exact value does

result      4 per SECOND
reason      file_*.js (edge.yaml:31:5) decides: 4 per SECOND
counter key edge_file_b.js_1700000000
metric key  edge.file_b.js
note        quota_mode: the request is over only when all its quota descriptors are
`)
	f("(admin,x)", `
domain      edge
descriptor  (admin, x)

1. admin = "x"
   + any value  edge.yaml:39:5
   => admin: entry for any value; no exact value or wildcard matches

result      unlimited: always OK, nothing is counted
reason      admin (edge.yaml:39:5) decides: unlimited
`)
}

func TestExplain_reasons(t *testing.T) {
	r := mustLoad(t, Options{}, File{"edge.yaml", []byte(explained)})
	f := func(domain, descriptor string, outcome Outcome, reason string) {
		t.Helper()
		x := r.Explain(domain, entriesOf(t, descriptor))
		if x.Outcome != outcome || x.Reason != reason {
			t.Errorf("%s: %s: %s\nwant %s: %s", descriptor, x.Outcome, x.Reason, outcome, reason)
		}
	}
	f("Edge", "(user,a)", UnknownDomain, `no rules are configured for domain "Edge"; "edge" differs only in case`)
	f("mail", "(user,a)", UnknownDomain, `no rules are configured for domain "mail"`)
	f("edge", "", NoEntries, "a descriptor without entries matches nothing")
	f("edge", "(health,1)", Whitelisted,
		"whitelisted: health (edge.yaml:38:5) has neither rate_limit nor nested descriptors")
	f("edge", "(user,alice)", TooShallow,
		"too shallow: user_alice (edge.yaml:3:5) has no rate_limit of its own, its limits are deeper (next key: path)")
	f("edge", "(admin,1)(x,2)", TooDeep,
		`too deep: admin (edge.yaml:39:5) has no nested descriptors, and the request goes on with ("x", "2")`)
	f("edge", "(User,alice)", NoMatch,
		`entry 1, ("User", "alice"): no entry here has the key "User"; "user" differs only in case`)
	f("edge", "(usr,alice)", NoMatch, `entry 1, ("usr", "alice"): no entry here has the key "usr"; did you mean user?`)
	f("edge", "(file,/IMG/*)", NoMatch,
		`entry 1, ("file", "/IMG/*"): no entry with key "file" takes the value "/IMG/*"; "/img/*" differs only in case`)
	f("edge", "(file,/x)", NoMatch, `entry 1, ("file", "/x"): no entry with key "file" takes the value "/x"`)
}

// Entries in the wrong order are a frequent error.
func TestExplain_order(t *testing.T) {
	r := mustLoad(t, Options{}, File{"edge.yaml", []byte(explained)})
	x := r.Explain("edge", entriesOf(t, "(path,/a)(user,alice)"))
	if !strings.Contains(x.Text(), `the order of entries matters, and key "user" stands at this level`) {
		t.Error(x.Text())
	}
}

func TestExplain_json(t *testing.T) {
	r := mustLoad(t, Options{}, File{"edge.yaml", []byte(explained)})
	got, err := json.MarshalIndent(r.Explain("edge", entriesOf(t, "(file,b.js)")), "", " ")
	must.Succeed(t, err)
	const want = `{
 "domain": "edge",
 "entries": [
  {
   "key": "file",
   "value": "b.js"
  }
 ],
 "outcome": "limited",
 "reason": "file_*.js (edge.yaml:31:5) decides: 4 per SECOND",
 "steps": [
  {
   "entry": {
    "key": "file",
    "value": "b.js"
   },
   "tried": [
    {
     "kind": "wildcard",
     "value": "/img/*",
     "at": "edge.yaml:24:5",
     "matched": false
    },
    {
     "kind": "wildcard",
     "value": "*.js",
     "at": "edge.yaml:31:5",
     "matched": true
    }
   ],
   "chosen": "file_*.js",
   "at": "edge.yaml:31:5",
   "why": "first wildcard in configuration order that matches; no exact value does"
  }
 ],
 "rule": {
  "key": "edge.file_*.js",
  "descriptors": [
   {
    "key": "file",
    "value": "*.js",
    "value_to_metric": true
   }
  ],
  "unit": "SECOND",
  "unit_multiplier": 1,
  "requests_per_unit": 4,
  "window_seconds": 1,
  "quota_mode": true,
  "file": "edge.yaml",
  "line": 31,
  "column": 5
 },
 "counter_key": "edge_file_b.js_<window start>",
 "metric_key": "edge.file_b.js",
 "notes": [
  "quota_mode: the request is over only when all its quota descriptors are"
 ]
}`
	if d := cmp.Diff(want, strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(got))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestWriteText(t *testing.T) {
	r := mustLoad(t, Options{}, File{"a.yaml", []byte(explained)},
		File{"z.yaml", []byte("domain: a.domain\ndescriptors: [{key: x, " + perMinute("1") +
			"}, {key: \"y\\n\", " + perMinute("2") + "}]\n")})
	var b bytes.Buffer
	must.Succeed(t, r.WriteText(&b))
	const want = `a.domain.x: unit=MINUTE requests_per_unit=1, shadow_mode: false, quota_mode: false
"a.domain.y\n": unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false
edge.user_alice.path: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false, unit_multiplier: 10
edge.user: unit=HOUR requests_per_unit=100, shadow_mode: false, quota_mode: false
edge.user.method: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false
edge.file_/img/*: unit=SECOND requests_per_unit=3, shadow_mode: true, quota_mode: false
edge.file_*.js: unit=SECOND requests_per_unit=4, shadow_mode: false, quota_mode: true
edge.admin: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b.Reset()
	if err := mustLoad(t, Options{}).WriteText(&b); err != nil || b.Len() != 0 {
		t.Errorf("no configuration shows as %q, %v", b.String(), err)
	}
}

// The JSON form has every attribute that a file can set.
func TestView(t *testing.T) {
	r := mustLoad(t, Options{}, File{"f.yaml", []byte(`domain: d
on_store_failure: allow
descriptors:
- key: a
  value: x*
  share_threshold: true
  value_to_metric: true
  descriptors:
  - key: b
    detailed_metric: true
    shadow_mode: true
    quota_mode: true
    metadata: {team: [edge, 5, 1.5, on, null]}
    rate_limit: {unit: month, requests_per_unit: 9, unit_multiplier: 2, name: n, replaces: [{name: m}]}
- key: c
  rate_limit: {unlimited: true, name: m}
- key: w
`)})
	got, err := json.Marshal(r.View())
	must.Succeed(t, err)
	const want = `[{"domain":"d","on_store_failure":"allow","files":["f.yaml"],"rules":[` +
		`{"key":"d.a_x*.b","descriptors":[{"key":"a","value":"x*","value_to_metric":true,"share_threshold":true},{"key":"b"}],"unit":"MONTH","unit_multiplier":2,` +
		`"requests_per_unit":9,"window_seconds":5184000,"name":"n","replaces":["m"],"shadow_mode":true,"quota_mode":true,"detailed_metric":true,` +
		`"metadata":{"team":["edge",5,1.5,true,null]},"file":"f.yaml","line":9,"column":5},` +
		`{"key":"d.c","descriptors":[{"key":"c"}],"unlimited":true,"requests_per_unit":0,"name":"m","file":"f.yaml","line":15,"column":3},` +
		`{"key":"d.w","descriptors":[{"key":"w"}],"whitelist":true,"requests_per_unit":0,"file":"f.yaml","line":17,"column":3}]}]`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Outcome says of every descriptor what Explain does, and Path and At where the rule stands.
func TestOutcome(t *testing.T) {
	r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, File{"edge.yaml", []byte(explained)},
		File{"empty.yaml", []byte("domain: empty")})
	f := func(domain, descriptor string, want Outcome, unmatched bool) {
		t.Helper()
		entries := entriesOf(t, descriptor)
		got := r.Domain(domain).Outcome(entries)
		if explained := r.Explain(domain, entries).Outcome; got != want || explained != want ||
			got.Unmatched() != unmatched {
			t.Errorf("%s: outcome %s, unmatched %v; Explain says %s; want %s, %v", descriptor, got, got.Unmatched(),
				explained, want, unmatched)
		}
	}
	f("edge", "", NoEntries, true)
	f("edge", "(user,bob)", Limited, false)
	f("edge", "(admin,x)", Unlimited, false)
	f("edge", "(health,x)", Whitelisted, false)
	f("edge", "(health,x)(more,y)", TooDeep, true)
	f("edge", "(user,alice)", TooShallow, true)
	f("edge", "(user,alice)(path,/)", Limited, false)
	f("edge", "(user,alice)(method,GET)", NoMatch, true)
	f("edge", "(file,a.css)", NoMatch, true)
	f("edge", "(usr,alice)", NoMatch, true)
	f("empty", "(a,b)", TooDeep, true)

	rule := r.Domain("edge").Find(entriesOf(t, "(user,alice)(path,/)"))
	if path, at := rule.Path("edge"), rule.At(); path != "edge.user_alice.path" || at != "edge.yaml:6:9" {
		t.Errorf("the rule is %s at %s", path, at)
	}
	var own Rule
	r.Override(&own, rls.Override{PerUnit: 1, Unit: rls.Minute})
	if own.Path("edge") != "" || own.At() != "" {
		t.Errorf("a caller's own limit is %q at %q", own.Path("edge"), own.At())
	}
}

// A request's descriptors are explained together: which loses its limit, which are alternatives.
func TestExplainRequest(t *testing.T) {
	r := mustLoad(t, Options{}, File{"f.yaml", []byte("domain: d\ndescriptors:\n" +
		"- {key: user, rate_limit: {unit: hour, requests_per_unit: 100, name: everybody}}\n" +
		"- {key: plan, value: gold, rate_limit: {unit: hour, requests_per_unit: 5000, replaces: [{name: " +
		"everybody}]}}\n" +
		"- {key: model, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n- {key: free}\n")})
	f := func(wantDecided bool, wantRequest string, descriptors ...string) {
		t.Helper()
		var all [][]rls.Entry
		for _, d := range descriptors {
			all = append(all, entriesOf(t, d))
		}
		x := r.ExplainRequest("d", all, 1700000000)
		walks := ""
		for i := range x.Descriptors {
			walks += x.Descriptors[i].Text() + "\n"
		}
		if got := x.Text(); got != strings.TrimSuffix(walks, "\n")+wantRequest || x.Decided() != wantDecided {
			t.Errorf("%q: decided %v\n%s\nwant %s", descriptors, x.Decided(), got, wantRequest)
		}
	}
	f(true, "", "(user,ann)")
	f(true, "", "(free,x)")
	f(false, "", "(other,x)")
	f(true,
		"\nrequest\nreplaced    descriptor 1 loses its limit: the rule of descriptor 2 replaces \"everybody\"\n"+
			"left        descriptor 2: 5000 per HOUR\n", "(user,ann)", "(plan,gold)")
	f(true,
		"\nrequest\nquota       descriptors 2 and 3: the request is over by them only when all are over\n"+
			"left        descriptor 1: 100 per HOUR\nleft        descriptor 2: 1 per MINUTE\n"+
			"left        descriptor 3: 1 per MINUTE\n", "(user,ann)", "(model,a)", "(model,b)")
	f(false, "\nrequest\nleft        no limit: the request is OK\n", "(other,x)", "(another,x)")
}

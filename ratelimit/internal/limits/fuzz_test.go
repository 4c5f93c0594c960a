package limits

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

// FuzzLoad gives the loader any text. A refusal names at least one problem and where it is; what
// is accepted can be searched, explained and shown.
func FuzzLoad(f *testing.F) {
	for _, s := range yamlSeeds(f) {
		f.Add(s)
	}
	for _, s := range ruleSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 {
			return
		}
		r, _, err := Load(context.Background(), []File{{"f.yaml", []byte(text)}},
			Options{Settings: Settings{NearRatio: 0.8}})
		if err != nil {
			refusal, ok := errors.AsType[*Rejection](err)
			if !ok || r != nil || len(refusal.Problems) == 0 {
				t.Fatalf("refused with %v and rules %v", err, r)
			}
			for _, p := range refusal.Problems {
				if p.Line < 1 || p.Column < 1 || p.Message == "" || strings.Contains(p.String(), "\n") {
					t.Fatalf("bad problem %+v", p)
				}
			}
			return
		}
		must.Succeed(t, r.WriteText(io.Discard))
		must.Succeed(t, must.ErrOf(json.Marshal(r.View())))
		for _, d := range r.Domains() {
			d.root.each(func(s *step) { checkReachable(t, r, d, s) })
		}
	})
}

// checkReachable looks up an entry by its own texts. It is found unless an entry above it is not
// chosen for its text, as with two ways to write one pattern.
func checkReachable(t *testing.T, r *Rules, d *Domain, s *step) {
	var entries []rls.Entry
	covered := false // a pattern also matches the empty text used to look up an entry for any value
	for up := s; up.parent != nil; up = up.parent {
		value := up.value
		for _, sibling := range up.parent.below.steps {
			covered = covered || value == "" && sibling.key == up.key && sibling.pattern != nil &&
				sibling.pattern.match("")
		}
		switch {
		case up.match != nil && up.match.networks != nil:
			value = up.match.networks.cidr[0].Addr.String()
			covered = true // by a longer prefix, an exact value, or not_cidr
		case up.match != nil:
			value = up.match.values[0]
		case up.pattern == nil:
			value = up.literal()
		case up.pattern.escaped:
			return
		}
		entries = append([]rls.Entry{{Key: up.key, Value: value}}, entries...)
	}
	rule := d.Find(entries)
	x := r.ExplainAt(d.Name, entries, 1700000000)
	if x.Decides != rule || x.Reason == "" || x.Text() == "" {
		t.Fatalf("explain and find differ for %v: %s", entries, x.Text())
	}
	for limit := range rule.Limits() {
		if limit.Unlimited {
			continue
		}
		start, end := limit.Span(1700000000)
		if start > 1700000000 || end <= 1700000000 || limit.PerUnit > 0 && limit.Burst == 0 && limit.tag == tagBucket {
			t.Fatalf("%s: the window is %d to %d, the burst %d", limit.limitText(), start, end, limit.Burst)
		}
		r.AppendKey(nil, limit, d.Name, entries, start)
		limit.AppendMetricKey(nil, d.Name, entries)
		if limit.Listed() {
			limit.AppendLimitKey(nil, d.Name, entries)
		}
	}
	if rule != s.rule && !covered && !strings.Contains(s.path(), "*") {
		t.Fatalf("%s is not found by its own texts", s.path())
	}
}

// FuzzPattern holds the matcher to a regular expression, and the warning about covered wildcards
// to its word.
func FuzzPattern(f *testing.F) {
	f.Add("a*b*a", "a1b2a", "a*")
	f.Add("aa*aa", "aaa", "**")
	f.Add(`a\*b*`, `a*bc`, `*\\*`)
	f.Fuzz(func(t *testing.T, value, text, other string) {
		if !utf8.ValidString(value) {
			return // regexp takes UTF-8 only
		}
		literal, p := parseValue(value)
		if p == nil {
			if want := unescapeStars(value); literal != want {
				t.Fatalf("%q is %q, want %q", value, literal, want)
			}
			return
		}
		match := p.match(text)
		if want := patternRegexp(value).MatchString(text); match != want {
			t.Fatalf("%q matches %q: %v, want %v", value, text, match, want)
		}
		if _, q := parseValue(other); q != nil && match && !strings.Contains(other, "\xff") &&
			q.match(p.joined("\xff")) && !q.match(text) {
			t.Fatalf("%q is said to cover %q but does not match %q", other, value, text)
		}
	})
}

var escapedStar = regexp.MustCompile(`(?s)\\*\*`)

// patternRegexp writes a pattern as a regular expression, piece by piece.
func patternRegexp(value string) *regexp.Regexp {
	var b strings.Builder
	last := 0
	for _, at := range escapedStar.FindAllStringIndex(value, -1) {
		b.WriteString(regexp.QuoteMeta(value[last:at[0]]))
		slashes := at[1] - at[0] - 1
		b.WriteString(regexp.QuoteMeta(strings.Repeat(`\`, slashes/2)))
		if slashes%2 == 1 {
			b.WriteString(`\*`)
		} else {
			b.WriteString(".*")
		}
		last = at[1]
	}
	return regexp.MustCompile("(?s)^" + b.String() + regexp.QuoteMeta(value[last:]) + "$")
}

func unescapeStars(value string) string {
	return escapedStar.ReplaceAllStringFunc(value, func(m string) string { return m[:(len(m)-1)/2] + "*" })
}

var ruleSeeds = []string{
	listed,
	"domain: d\ndescriptors:\n- {key: a, values: [x, y], rate_limits: [{unit: day, requests_per_unit: 0, algorithm: " +
		"Sliding_Window}, {unit: year, requests_per_unit: 2, calendar: UTC, shadow_mode: on}]}\n" +
		"- {key: b, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: 3650}}\n",
	"domain: d\ndescriptors:\n- {key: a, rate_limit: {unlimited: true, burst: 3, calendar: '', algorithm: ~}, " +
		"rate_limits: [5]}\n- {key: b, rate_limits: }\n- {key: c, rate_limits: [{unlimited: true, replaces: [{name: " +
		"c}]}, {unit: month, calendar: X}]}\n",
	"domain: d\ndescriptors: [{key: a, value: 'x*', share_threshold: yes, rate_limit: {unit: day, requests_per_unit: " +
		"1, unit_multiplier: 3, name: n, replaces: [{name: m}]}}]\n",
	"domain: d\non_store_failure: deny\ndescriptors:\n- key: a\n  metadata: {x: [1, 2.5, null, yes, {y: z}]}\n" +
		"  rate_limit: {unlimited: true}\n  descriptors:\n  - {key: b, detailed_metric: true, rate_limit: {unit: " +
		"Week, requests_per_unit: 0x10}}\n",
	"domain: d\ndescriptors:\n- &x {key: a, value: b, rate_limit: {unit: hour, requests_per_unit: 1_000}}\n- <<: *x\n" +
		"  key: c\n- {key: 'a\\*', quota_mode: true}\n",
	"domain: d\ndescriptors:\n- {key: a, values: [x, 'y\\*', 1.5], rate_limit: {unit: day, requests_per_unit: 1}, " +
		"descriptors: [{key: b, values: [p, q], share_threshold: true, group: g}]}\n",
	"domain: d\ndescriptors:\n- key: ip\n  cidr:\n  - 10.0.0.0/8\n  - '2001:db8::/32'\n  not_cidr: [10.1.0.0/16]\n" +
		"  prefix_length: {v4: 24, v6: 64}\n  rate_limit: {unit: day, requests_per_unit: 1}\n" +
		"- {key: ip, cidr: ['::/0', 1.2.3.4], share_threshold: yes}\n- {key: ip, not_cidr: [0.0.0.0/1]}\n",
	"domain: d\ndescriptors:\n- key: a\n  value: 'b\\**'\n- key: a\n  value: 'b\\*'\n- key: a\n  value: '*'\n" +
		"- key: a\n",
}

// yamlSeeds are texts with the parts of YAML, one quoted on each line.
func yamlSeeds(f *testing.F) (seeds []string) {
	text, err := os.ReadFile("testdata/yaml.txt")
	must.Succeed(f, err)
	for line := range strings.Lines(string(text)) {
		seed, err := strconv.Unquote(strings.TrimSpace(line))
		must.Succeed(f, err)
		seeds = append(seeds, seed)
	}
	return seeds
}

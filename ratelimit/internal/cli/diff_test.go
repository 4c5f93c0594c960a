package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each case changes one entry; counters say what becomes of its counters.
func TestDiff(t *testing.T) {
	dir := t.TempDir()
	run := func(before, after string, flags ...string) (status int, stdout string) {
		t.Helper()
		args := append([]string{"ratelimit", "diff"}, flags...)
		for i, entry := range []string{before, after} {
			file := filepath.Join(dir, []string{"old.yaml", "new.yaml"}[i])
			if err := os.WriteFile(file, []byte("domain: d\ndescriptors:\n"+entry), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, file)
		}
		var out, errs strings.Builder
		status = (Program{}).run(t.Context(), args, nil, &out, &errs)
		return status, out.String() + errs.String()
	}
	const plain = "  - {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"
	f := func(before, after, counters string, fields ...string) {
		t.Helper()
		status, out := run(before, after, "-format", "json")
		var d ruleDiff
		if err := json.Unmarshal([]byte(out), &d); err != nil || status != exitFailed || len(d.Changed) != 1 {
			t.Fatalf("%s%s: got status %d, %s", before, after, status, out)
		}
		c := d.Changed[0]
		var names []string
		for _, f := range c.Fields {
			names = append(names, f.Field)
		}
		if c.Counters != counters || strings.Join(names, " ") != strings.Join(fields, " ") {
			t.Errorf("%s%s: counters %q, fields %v; want %q, %v", before, after, c.Counters, names, counters, fields)
		}
	}
	f(plain, "  - {key: k, rate_limit: {unit: minute, requests_per_unit: 6}}\n", countersGoOn, "requests_per_unit")
	f(plain, "  - {key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}\n", countersGoOn,
		"shadow_mode")
	f(plain, "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 5}}\n", countersAnew, "unit")
	f(plain, "  - {key: k, rate_limit: {unit: minute, unit_multiplier: 2, requests_per_unit: 5}}\n", countersAnew,
		"unit_multiplier")
	f(plain, "  - {key: k, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window}}\n",
		countersAnew, "algorithm")
	f(plain, "  - {key: k, rate_limit: {unlimited: true}}\n", "", "requests_per_unit", "unit", "unlimited")
	f("  - {key: k, rate_limit: {unit: day, requests_per_unit: 5}}\n",
		"  - {key: k, rate_limit: {unit: day, requests_per_unit: 5, calendar: UTC}}\n", countersAnew, "calendar")
	f("  - {key: k, value: a*, rate_limit: {unit: day, requests_per_unit: 5}}\n",
		"  - {key: k, value: a*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}\n",
		countersShare, "share_threshold")
	f("  - {key: k, cidr: [10.0.0.0/8], rate_limit: {unit: day, requests_per_unit: 5}}\n",
		"  - {key: k, cidr: [10.0.0.0/8], prefix_length: {v4: 24}, rate_limit: {unit: day, requests_per_unit: 5}}\n",
		countersShare, "prefix_length")
	f("  - key: k\n    rate_limits: [{unit: hour, requests_per_unit: 5, algorithm: token_bucket}]\n",
		"  - key: k\n    rate_limits: [{unit: hour, requests_per_unit: 5, algorithm: token_bucket, burst: 9}]\n",
		countersGoOn, "burst")

	// The second limit is the same, and becomes the first fixed window of its list: in the default
	// layout it has another key.
	was := "  - key: k\n    rate_limits: [{unit: second, requests_per_unit: 5}, {unit: hour, requests_per_unit: 9}]\n"
	is := "  - key: k\n    rate_limits: [{unit: second, requests_per_unit: 5, algorithm: token_bucket}, {unit: hour, " +
		"requests_per_unit: 9}]\n"
	for flag, want := range map[string]int{"-escaped=false": 2, "-escaped": 1} {
		if status, out := run(was, is, flag); status != exitFailed ||
			strings.Count(out, "counters start anew") != want {
			t.Errorf("%s: got status %d and\n%swant %d counters that start anew", flag, status, out, want)
		}
	}

	if status, out := run(plain, plain); status != exitOK || out != "0 added, 0 removed, 0 changed, 1 the same\n" {
		t.Errorf("no difference: got status %d and %s", status, out)
	}
	other := strings.Replace(plain, "key: k", "key: other", 1)
	if status, out := run(plain, other); status != exitFailed || !strings.Contains(out, "added    d.other (") ||
		!strings.Contains(out, "removed  d.k (") {
		t.Errorf("another key: got status %d and %s", status, out)
	}
	if status, out := run(plain, "  - {value: v}\n"); status != exitUsage || !strings.Contains(out, "needs a key") {
		t.Errorf("bad rules: got status %d and %s", status, out)
	}
	if status, _ := run(plain, plain, "-format", "xml"); status != exitUsage {
		t.Errorf("a bad format: got status %d, want %d", status, exitUsage)
	}
}

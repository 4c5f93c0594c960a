package limits

import (
	"slices"
	"testing"

	"gatehouse/ratelimit/internal/stats"
)

// A rule keeps its counters over a reload; the handles of all fixed metric keys are listed.
func TestLoad_stats(t *testing.T) {
	reg := stats.NewRegistry(stats.Options{})
	list := "{key: a, " + perMinute("1") + "}, {key: b, detailed_metric: true, " + perMinute("1") + "}"
	before := mustLoad(t, Options{Stats: reg}, inDomain(list))
	after := mustLoad(t, Options{Stats: reg}, inDomain(list+", {key: c}"))
	a := entriesOf(t, "(a,1)")
	if before.Domain("d").Find(a).Stats != after.Domain("d").Find(a).Stats {
		t.Error("a reload gave the rule other counters")
	}
	if h := after.StatsHandles(); len(h) != 1 || !slices.Contains(h, after.Domain("d").Find(a).Stats) {
		t.Errorf("handles %v", h)
	}
	if after.Domain("d").Find(entriesOf(t, "(b,1)")).Stats != nil {
		t.Error("a runtime-valued metric key has fixed counters")
	}
}

// No files are a configuration without domains.
func TestLoad_nothing(t *testing.T) {
	r := mustLoad(t, Options{})
	if len(r.Domains()) != 0 || r.Domain("d") != nil || r.View() == nil {
		t.Errorf("domains %v", r.Domains())
	}
}

// YAML 1.1: texts keep their spelling, numbers and booleans may be written in several ways.
func TestLoad_scalars(t *testing.T) {
	r := mustLoad(t, Options{}, File{"f.yaml", []byte(`
domain: d
descriptors:
- {key: 7, value: 15, rate_limit: {unit: minute, requests_per_unit: 0x10}}
- {key: hex, value: 0x1F, rate_limit: {unit: minute, requests_per_unit: 010}}
- {key: float, value: 1.50, rate_limit: {unit: minute, requests_per_unit: 1_000}}
- {key: yes, value: No, rate_limit: {unlimited: on}}
- {key: date, value: 2024-01-31, rate_limit: {unit: minute, requests_per_unit: +1, unlimited: off}}
- {key: "null", value: ~, rate_limit: {unit: minute, requests_per_unit: 0b11}}
- {key: big, value: 99999999999999999999, rate_limit: {unit: minute, requests_per_unit: 4294967295}}
- {key: text, value: !!str 5, rate_limit: {unit: minute, requests_per_unit: 5}}
`)})
	f := func(descriptor, want string) {
		t.Helper()
		if got := walk(t, r, descriptor); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	f("(7,15)", "16 per MINUTE | d_7_15_1699999980 | d.7_15")
	f("(hex,0x1F)", "8 per MINUTE | d_hex_0x1F_1699999980 | d.hex_0x1F")
	f("(float,1.50)", "1000 per MINUTE | d_float_1.50_1699999980 | d.float_1.50")
	f("(yes,No)", "unlimited")
	f("(date,2024-01-31)", "1 per MINUTE | d_date_2024-01-31_1699999980 | d.date_2024-01-31")
	f("(null,any)", "3 per MINUTE | d_null_any_1699999980 | d.null")
	f("(big,99999999999999999999)",
		"4294967295 per MINUTE | d_big_99999999999999999999_1699999980 | d.big_99999999999999999999")
	f("(text,5)", "5 per MINUTE | d_text_5_1699999980 | d.text_5")
}

// Anchors, aliases and merge keys: what a map says itself wins, then the first merged.
func TestLoad_aliases(t *testing.T) {
	r := mustLoad(t, Options{}, File{"f.yaml", []byte(`
domain: d
descriptors:
- &base
  key: a
  value: x
  rate_limit: &limit {unit: minute, requests_per_unit: 1}
- <<: *base
  value: y
- <<: [{key: b, value: z}, *base]
- key: c
  rate_limit:
    <<: *limit
    requests_per_unit: 7
- key: d
  descriptors:
  - *base
`)})
	f := func(descriptor, want string) {
		t.Helper()
		if got := walk(t, r, descriptor); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	f("(a,x)", "1 per MINUTE | d_a_x_1699999980 | d.a_x")
	f("(a,y)", "1 per MINUTE | d_a_y_1699999980 | d.a_y")
	f("(b,z)", "1 per MINUTE | d_b_z_1699999980 | d.b_z")
	f("(c,1)", "7 per MINUTE | d_c_1_1699999980 | d.c")
	f("(d,1)(a,x)", "1 per MINUTE | d_d_1_a_x_1699999980 | d.d.a_x")
}

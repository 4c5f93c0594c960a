package limits

import (
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/rls"
)

// entriesOf reads the shorthand of the specification: (k,v)(j,w).
func entriesOf(t testing.TB, s string) []rls.Entry {
	t.Helper()
	var out []rls.Entry
	for s != "" {
		end := strings.IndexByte(s, ')')
		if s[0] != '(' || end < 0 {
			t.Fatalf("bad descriptor %q", s)
		}
		k, v, _ := strings.Cut(s[1:end], ",")
		out = append(out, rls.Entry{Key: k, Value: v})
		s = s[end+1:]
	}
	return out
}

// inDomain wraps a list of descriptors in flow style into the file of domain d.
func inDomain(list string) File {
	return File{"d.yaml", []byte("domain: d\ndescriptors: [" + list + "]\n")}
}

// perMinute is a rate_limit in flow style.
func perMinute(n string) string { return "rate_limit: {unit: minute, requests_per_unit: " + n + "}" }

// walk is what a descriptor comes to: "none", or limit, counter key and metric key.
func walk(t testing.TB, r *Rules, descriptor string) string {
	t.Helper()
	entries := entriesOf(t, descriptor)
	rule := r.Domain("d").Find(entries)
	if x := r.Explain("d", entries); x.Decides != rule {
		t.Errorf("%s: Explain finds another rule than Find: %s", descriptor, x.Text())
	}
	if rule == nil {
		return "none"
	}
	if rule.Unlimited {
		return "unlimited"
	}
	now := int64(1700000000)
	key := r.AppendKey(nil, rule, "d", entries, now-now%rule.Window)
	metric := rule.appendAnyMetricKey(nil, "d", entries)
	if (rule.Stats == nil) != (rule.rare().metric != nil) {
		t.Errorf("%s: a rule has either counters or the parts of a metric key", descriptor)
	}
	return rule.limitText() + " | " + string(key) + " | " + string(metric)
}

// Which entry decides, and under which counter and metric key.
func TestFind_examples(t *testing.T) {
	var r *Rules
	given := func(list string) {
		t.Helper()
		r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, inDomain(list))
	}
	f := func(descriptor, want string) {
		t.Helper()
		if got := walk(t, r, descriptor); got != want {
			t.Errorf("%s\n got %s\nwant %s", descriptor, got, want)
		}
	}

	given("{key: k, " + perMinute("10") + "}") // 1 to 4
	f("(k,v)", "10 per MINUTE | d_k_v_1699999980 | d.k")
	f("(k,)", "10 per MINUTE | d_k__1699999980 | d.k")
	f("(x,v)", "none")
	f("(k,v)(j,w)", "none")
	f("", "none")

	given("{key: k, value: v, " + perMinute("5") + "}, {key: k, " + perMinute("10") + "}") // 5, 6
	f("(k,v)", "5 per MINUTE | d_k_v_1699999980 | d.k_v")
	f("(k,V)", "10 per MINUTE | d_k_V_1699999980 | d.k")

	given("{key: k, value: ok}, {key: k, " + perMinute("10") + "}") // 7
	f("(k,ok)", "none")
	f("(k,no)", "10 per MINUTE | d_k_no_1699999980 | d.k")

	given("{key: a, value: b, descriptors: [{key: c, " + perMinute("3") +
		"}, {key: c, value: x, " + perMinute("4") + "}]}") // 8 to 10
	f("(a,b)(c,y)", "3 per MINUTE | d_a_b_c_y_1699999980 | d.a_b.c")
	f("(a,b)(c,x)", "4 per MINUTE | d_a_b_c_x_1699999980 | d.a_b.c_x")
	f("(a,b)", "none")
	f("(c,x)", "none")
	f("(c,x)(a,b)", "none")
	f("(a,z)(c,x)", "none")
	f("(a,b)(c,x)(e,f)", "none")

	given("{key: a, " + perMinute("1") + ", descriptors: [{key: c, " + perMinute("3") + "}]}") // 11
	f("(a,1)", "1 per MINUTE | d_a_1_1699999980 | d.a")
	f("(a,1)(c,2)", "3 per MINUTE | d_a_1_c_2_1699999980 | d.a.c")
	f("(a,1)(z,2)", "none")

	given("{key: a, value: v, descriptors: [{key: x, " + perMinute("1") +
		"}]}, {key: a, descriptors: [{key: y, " + perMinute("2") + "}]}") // 12
	f("(a,v)(y,1)", "none")
	f("(a,w)(y,1)", "2 per MINUTE | d_a_w_y_1_1699999980 | d.a.y")

	given("{key: w, value: a*, " + perMinute("1") + "}, {key: w, value: ab*, " +
		perMinute("2") + "}, {key: w, value: abc, " + perMinute("3") + "}, {key: w, " + perMinute("4") +
		"}") // 13 to 16
	f("(w,abc)", "3 per MINUTE | d_w_abc_1699999980 | d.w_abc")
	f("(w,abd)", "1 per MINUTE | d_w_abd_1699999980 | d.w_a*")
	f("(w,a)", "1 per MINUTE | d_w_a_1699999980 | d.w_a*")
	f("(w,zzz)", "4 per MINUTE | d_w_zzz_1699999980 | d.w")
	f("(w,ab*)", "2 per MINUTE | d_w_ab*_1699999980 | d.w_ab*") // the very text, although a* stands first

	given("{key: w, value: ab*, " + perMinute("2") + "}, {key: w, value: a*, " + perMinute("1") + "}") // 17
	f("(w,abd)", "2 per MINUTE | d_w_abd_1699999980 | d.w_ab*")
	f("(w,ax)", "1 per MINUTE | d_w_ax_1699999980 | d.w_a*")
	f("(w,b)", "none")

	given("{key: p, value: /api/*/x, " + perMinute("1") + "}") // 18, 19
	f("(p,/api/1/x)", "1 per MINUTE | d_p_/api/1/x_1699999980 | d.p_/api/*/x")
	f("(p,/api//x)", "1 per MINUTE | d_p_/api//x_1699999980 | d.p_/api/*/x")
	f("(p,/api/1/2/x)", "1 per MINUTE | d_p_/api/1/2/x_1699999980 | d.p_/api/*/x")
	f("(p,/api/x)", "none")

	given("{key: q, value: '*', " + perMinute("2") + "}") // 20
	f("(q,)", "2 per MINUTE | d_q__1699999980 | d.q_*")
	f("(q,zz)", "2 per MINUTE | d_q_zz_1699999980 | d.q_*")

	given("{key: r, value: '*end', " + perMinute("3") + "}, {key: s, value: a*b*a, " +
		perMinute("4") + "}, {key: x, value: aa*aa, " + perMinute("6") + "}") // 21 to 23
	f("(r,end)", "3 per MINUTE | d_r_end_1699999980 | d.r_*end")
	f("(r,theend)", "3 per MINUTE | d_r_theend_1699999980 | d.r_*end")
	f("(r,ends)", "none")
	f("(s,aba)", "4 per MINUTE | d_s_aba_1699999980 | d.s_a*b*a")
	f("(s,a1b2a)", "4 per MINUTE | d_s_a1b2a_1699999980 | d.s_a*b*a")
	f("(s,aa)", "none")
	f("(s,aab)", "none")
	f("(x,aaaa)", "6 per MINUTE | d_x_aaaa_1699999980 | d.x_aa*aa")
	f("(x,aaa)", "none")

	given("{key: w, value: a*, descriptors: [{key: n, " + perMinute("1") + "}]}, {key: w, " + perMinute("9") +
		"}") // 24
	f("(w,ab)", "none")
	f("(w,ab)(n,1)", "1 per MINUTE | d_w_ab_n_1_1699999980 | d.w_a*.n")
	f("(w,b)", "9 per MINUTE | d_w_b_1699999980 | d.w")

	given("{key: f, value: f/*, share_threshold: true, " + perMinute("2") +
		"}, {key: g, value: g/*, " + perMinute("2") + "}") // 25, 26
	f("(f,f/1)", "2 per MINUTE | d_f_f/*_1699999980 | d.f_f/")
	f("(f,f/2)", "2 per MINUTE | d_f_f/*_1699999980 | d.f_f/")
	f("(f,f/*)", "2 per MINUTE | d_f_f/*_1699999980 | d.f_f/")
	f("(g,g/1)", "2 per MINUTE | d_g_g/1_1699999980 | d.g_g/*")

	given("{key: f, value: f/*, share_threshold: true, descriptors: [{key: m, " + perMinute("1") + "}]}") // 27
	f("(f,f/1)(m,GET)", "1 per MINUTE | d_f_f/*_m_GET_1699999980 | d.f_f/.m")
	f("(f,f/2)(m,GET)", "1 per MINUTE | d_f_f/*_m_GET_1699999980 | d.f_f/.m")

	given("{key: k, " + perMinute("0") +
		"}, {key: u, rate_limit: {unlimited: true}}, {key: v, rate_limit: {unlimited: yes}, descriptors: [{key: x, " +
		perMinute("1") + "}]}") // 28 to 30
	f("(k,v)", "0 per MINUTE | d_k_v_1699999980 | d.k")
	f("(u,1)", "unlimited")
	f("(v,1)(x,1)", "1 per MINUTE | d_v_1_x_1_1699999980 | d.v.x")

	given("{key: k, descriptors: [{key: k, " + perMinute("2") + "}]}") // 45
	f("(k,a)(k,b)", "2 per MINUTE | d_k_a_k_b_1699999980 | d.k.k")
	f("(k,a)", "none")

	given("{key: s, rate_limit: {unit: SECOND, requests_per_unit: 1}}, {key: y, rate_limit: {unit: Year, " +
		"requests_per_unit: 1}}, {key: t, rate_limit: {unit: minute, unit_multiplier: 10, requests_per_unit: 1}}") // 46, 47
	f("(s,1)", "1 per SECOND | d_s_1_1700000000 | d.s")
	f("(y,1)", "1 per YEAR | d_y_1_1671408000 | d.y")
	f("(t,1)", "1 per 10 × MINUTE | d_t_1_1699999800 | d.t")

	given("{key: a, " + perMinute("1") + ", descriptors: [{key: b, " + perMinute("1") +
		"}]}") // 48: the collision that the default layout has
	f("(a,x_b_y)", "1 per MINUTE | d_a_x_b_y_1699999980 | d.a")
	f("(a,x)(b,y)", "1 per MINUTE | d_a_x_b_y_1699999980 | d.a.b")
}

// Key and value are compared separately: (a, b_x) is not (a_b, x), and a star in a key is a star.
func TestFind_neverJoins(t *testing.T) {
	r := mustLoad(t, Options{}, inDomain(strings.Join([]string{
		"{key: a_b, " + perMinute("1") + "}", "{key: c, value: x_*, " + perMinute("1") + "}",
		"{key: 'e*', " + perMinute("1") + "}", "{key: j_, " + perMinute("1") + "}",
		"{key: k_l, " + perMinute("1") + "}", "{key: k, value: l, " + perMinute("2") + "}",
	}, ", ")))
	f := func(descriptor string, want bool) {
		t.Helper()
		if got := walk(t, r, descriptor) != "none"; got != want {
			t.Errorf("%s: limited %v, want %v", descriptor, got, want)
		}
	}
	f("(a,b)", false)
	f("(c_x,y)", false)
	f("(efg,1)", false)
	f("(e,)", false)
	f("(e*,1)", true)
	f("(j,)", false)
	f("(k_l,)", true)
	f("(k,l)", true)
}

// Overrides have keys and metric keys of their own.
func TestOverride(t *testing.T) {
	r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}})
	f := func(o rls.Override, descriptor, wantKey, wantMetric string) {
		t.Helper()
		rule := Rule{Attributes: Attributes{Shadow: true}, Name: "left from the last request"}
		r.Override(&rule, o)
		if rule.Shadow || rule.Name != "" || rule.Stats != nil || rule.Multiplier != 1 {
			t.Errorf("an override has attributes: %+v", rule)
		}
		entries := entriesOf(t, descriptor)
		now := int64(1700000000)
		if got := string(r.AppendKey(nil, &rule, "d", entries, now-now%rule.Window)); got != wantKey {
			t.Errorf("key %s, want %s", got, wantKey)
		}
		if got := string(rule.AppendMetricKey(nil, "d", entries)); got != wantMetric {
			t.Errorf("metric key %s, want %s", got, wantMetric)
		}
	}
	f(rls.Override{PerUnit: 2, Unit: rls.Month}, "(foo,a)", "d_foo_a_1697760000", "d.foo_a")
	f(rls.Override{PerUnit: 0, Unit: rls.Day}, "(foo,a)", "d_foo_a_1699920000", "d.foo_a")
	f(rls.Override{PerUnit: 1, Unit: rls.Week}, "(foo,)(bar,x)", "d_foo__bar_x_1699488000", "d.foo.bar_x")

	var rule Rule
	for _, unit := range []rls.Unit{0, 8, -1, 1 << 30} {
		if r.Override(&rule, rls.Override{PerUnit: 1, Unit: unit}); rule.Window != 0 {
			t.Errorf("unit %d has a window", unit)
		}
	}
}

// Numbers of names: rules of one name share one, unknown names have none.
func TestReplaces_numbers(t *testing.T) {
	r := mustLoad(t, Options{},
		inDomain("{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n}}, {key: b, rate_limit: {unit: day, "+
			"requests_per_unit: 1, name: n}}, "+
			"{key: c, rate_limit: {unlimited: true, name: m, replaces: [{name: n}, {name: nobody}, {name: n}]}}, "+
			"{key: x, "+
			perMinute("1")+"}"))
	d := r.Domain("d")
	a, b, c, x := d.Find(entriesOf(t, "(a,1)")), d.Find(entriesOf(t, "(b,1)")), d.Find(entriesOf(t, "(c,1)")),
		d.Find(entriesOf(t, "(x,1)"))
	if a.ID == 0 || a.ID != b.ID || c.ID == a.ID || c.ID == 0 || x.ID != 0 {
		t.Errorf("numbers: a %d, b %d, c %d, x %d", a.ID, b.ID, c.ID, x.ID)
	}
	if len(c.rare().replaces) != 1 || c.rare().replaces[0] != a.ID {
		t.Errorf("c replaces %v, want [%d]", c.rare().replaces, a.ID)
	}
}

// The near threshold is computed in single precision.
func TestNear(t *testing.T) {
	f := func(limit uint32, ratio float32, want uint32) {
		t.Helper()
		if got := near(limit, ratio); got != want {
			t.Errorf("near(%d, %v) = %d, want %d", limit, ratio, got, want)
		}
	}
	f(10, 0.8, 8)
	f(15, 0.8, 12)
	f(90, 0.7, 63)
	f(100, 0.29, 29)
	f(100, 0.57, 57)
	f(75, 0.84, 62)
	f(100, 0.53, 52)
	f(5242880, 0.8, 4194304)
	f(0, 0.8, 0)
	f(10, 0, 0)
	f(10, 1, 10)
	f(4294967295, 1, 4294967295)
	f(16777219, 1, 16777219) // single precision rounds it up
	f(4294967200, 1, 4294967200)
}

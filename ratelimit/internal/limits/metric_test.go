package limits

import "testing"

// The parts of a metric key (docs/statistics.md#metric-keys): under share_threshold only the text before the star.
func TestMetricKey(t *testing.T) {
	var r *Rules
	given := func(list string) { t.Helper(); r = mustLoad(t, Options{}, inDomain(list)) }
	f := func(descriptor, want string) {
		t.Helper()
		entries := entriesOf(t, descriptor)
		rule := r.Domain("d").Find(entries)
		if rule == nil {
			t.Errorf("%s has no rule", descriptor)
			return
		}
		if got := string(rule.appendAnyMetricKey(nil, "d", entries)); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	l := perMinute("1")

	given("{key: k, detailed_metric: true, " + l + "}")
	f("(k,v)", "d.k_v")
	f("(k,)", "d.k_")
	given("{key: a, descriptors: [{key: b, detailed_metric: true, " + l + "}]}")
	f("(a,1)(b,2)", "d.a_1.b_2")
	given("{key: a, detailed_metric: true, descriptors: [{key: b, " + l + "}]}")
	f("(a,1)(b,2)", "d.a.b")
	given("{key: w, value: a*, detailed_metric: true, " + l + "}")
	f("(w,ab)", "d.w_ab")
	given("{key: r, value_to_metric: true, descriptors: [{key: m, value_to_metric: true, descriptors: [{key: u, " +
		l + "}]}]}")
	f("(r,x)(m,GET)(u,7)", "d.r_x.m_GET.u")
	f("(r,x)(m,)(u,7)", "d.r_x.m.u")
	given("{key: u, value_to_metric: true, descriptors: [{key: a, value: read*, value_to_metric: true, descriptors: " +
		"[{key: r, " + l + "}]}]}")
	f("(u,al)(a,readf)(r,doc)", "d.u_al.a_readf.r")
	given("{key: w, value: foo*, descriptors: [{key: o, value_to_metric: true, descriptors: [{key: l, " + l + "}]}]}")
	f("(w,foo1)(o,bar)(l,X)", "d.w_foo*.o_bar.l")
	given("{key: r, value: api/*, share_threshold: true, value_to_metric: true, descriptors: [{key: m, " + l + "}]}")
	f("(r,api/v1)(m,GET)", "d.r_api/.m")
	given("{key: s, value: svc/*, share_threshold: true, descriptors: [{key: e, detailed_metric: true, " + l + "}]}")
	f("(s,svc/u)(e,get)", "d.s_svc/.e_get")
	f("(s,svc/u)(e,)", "d.s_svc/.e")
	given("{key: r, value_to_metric: true, descriptors: [{key: u, detailed_metric: true, " + l + "}]}")
	f("(r,x)(u,7)", "d.r_x.u_7")
	given("{key: u, value: v, value_to_metric: true, " + l + "}")
	f("(u,v)", "d.u_v")

	// The rows of the first table that no example shows.
	given("{key: k, value: v, " + l + "}, {key: k, value: w*, " + l + "}, {key: k, value: x*, value_to_metric: true, " +
		l + "}, {key: k, " + l + "}")
	f("(k,v)", "d.k_v")
	f("(k,w1)", "d.k_w*")
	f("(k,x1)", "d.k_x1")
	f("(k,y)", "d.k")
	given("{key: a, value: b, descriptors: [{key: s, value: '*x*y', share_threshold: true, descriptors: [{key: e, " +
		"detailed_metric: true, " + l + "}]}]}")
	f("(a,b)(s,1x2y)(e,3)", "d.a_b.s_.e_3")
	given(`{key: s, value: 'a\*b*', share_threshold: true, ` + l + `}`)
	f("(s,a*bc)", "d.s_a*b")
}

// A rule all of whose parts are fixed has its counters from the start.
func TestMetricKey_static(t *testing.T) {
	r := mustLoad(t, Options{}, inDomain("{key: a, value: b, descriptors: [{key: c, value: d, detailed_metric: true, "+
		perMinute("1")+"}, {key: e, detailed_metric: true, "+perMinute("1")+"}]}"))
	if r.Domain("d").Find(entriesOf(t, "(a,b)(c,d)")).Stats == nil {
		t.Error("the metric key of exact values only is not fixed")
	}
	if r.Domain("d").Find(entriesOf(t, "(a,b)(e,d)")).Stats != nil {
		t.Error("a metric key with a runtime value has fixed counters")
	}
}

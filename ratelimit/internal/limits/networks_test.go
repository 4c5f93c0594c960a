package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

// Networks take a value that is an IP address behind exact values and before patterns.
func TestFind_networks(t *testing.T) {
	list := "{key: ip, value: 10.1.2.3, " + perMinute("1") + "}, {key: ip, cidr: [10.0.0.0/8], " + perMinute("5") +
		"}, {key: ip, cidr: [10.1.0.0/16], not_cidr: [10.1.9.0/24], " + perMinute("3") +
		"}, {key: ip, cidr: ['2001:db8::/32'], prefix_length: {v6: 64}, " + perMinute("4") +
		"}, {key: ip, value: '10.1.*', " + perMinute("7") + "}, {key: ip, " + perMinute("9") + "}"
	var r *Rules
	f := func(value, want string) {
		t.Helper()
		if got := walk(t, r, "(ip,"+value+")"); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
	r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, inDomain(list))
	f("10.1.2.3", "1 per MINUTE | d_ip_10.1.2.3_1699999980 | d.ip_10.1.2.3")
	f("10.1.2.4", "3 per MINUTE | d_ip_10.1.2.4_1699999980 | d.ip_10_1_0_0/16")
	f("::ffff:10.1.2.4", "3 per MINUTE | d_ip_10.1.2.4_1699999980 | d.ip_10_1_0_0/16")
	f("10.1.9.1", "5 per MINUTE | d_ip_10.1.9.1_1699999980 | d.ip_10_0_0_0/8")
	f("10.1.2.4:80", "7 per MINUTE | d_ip_10.1.2.4:80_1699999980 | d.ip_10.1.*")
	f("010.1.2.4", "9 per MINUTE | d_ip_010.1.2.4_1699999980 | d.ip")
	f("2001:DB8:0:1::5", "4 per MINUTE | d_ip_2001:db8:0:1::/64_1699999980 | d.ip_2001_db8__/32")
	f("2001:db8:0:1:ffff::1", "4 per MINUTE | d_ip_2001:db8:0:1::/64_1699999980 | d.ip_2001_db8__/32")
	f("10.0.0.0/8", "9 per MINUTE | d_ip_10.0.0.0/8_1699999980 | d.ip")
	// not the text of the exact value
	f("::ffff:10.1.2.3", "3 per MINUTE | d_ip_10.1.2.3_1699999980 | d.ip_10_1_0_0/16")

	r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}, EscapedKeys: true}, inDomain(list))
	f("10.1.2.3", "1 per MINUTE | d|ip=10.1.2.3|m1|1699999980 | d.ip_10.1.2.3")
	f("10.1.2.4", "3 per MINUTE | d|ip~10.1.2.4|m1|1699999980 | d.ip_10_1_0_0/16")
	f("2001:DB8:0:1::5", "4 per MINUTE | d|ip~2001:db8:0:1::/64|m1|1699999980 | d.ip_2001_db8__/32")
	f("10.0.0.0/8", "9 per MINUTE | d|ip=10.0.0.0/8|m1|1699999980 | d.ip")
}

// What networks count by, and what they are called in statistics.
func TestFind_networkKeys(t *testing.T) {
	var r *Rules
	f := func(descriptor, want string) {
		t.Helper()
		if got := walk(t, r, descriptor); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	given := func(list string) {
		t.Helper()
		r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, inDomain(list))
	}

	given("{key: ip, cidr: [10.0.0.0/8, 192.168.0.0/16, '2001:db8::/32'], prefix_length: {v4: 24}, " +
		perMinute("1") + "}")
	f("(ip,10.1.2.3)", "1 per MINUTE | d_ip_10.1.2.0/24_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,192.168.7.3)", "1 per MINUTE | d_ip_192.168.7.0/24_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,2001:DB8::0:1)", "1 per MINUTE | d_ip_2001:db8::1_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,172.16.0.1)", "none")

	given("{key: ip, cidr: [10.0.0.0/8, '2001:DB8::/32', 10.1.2.3], share_threshold: true, " + perMinute("1") +
		", descriptors: [{key: p, " + perMinute("2") + "}]}")
	f("(ip,10.1.2.4)", "1 per MINUTE | d_ip_10.0.0.0/8_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,10.200.2.4)", "1 per MINUTE | d_ip_10.0.0.0/8_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,10.1.2.3)", "1 per MINUTE | d_ip_10.1.2.3_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,2001:db8::7)", "1 per MINUTE | d_ip_2001:db8::/32_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,2001:db8::7)(p,x)", "2 per MINUTE | d_ip_2001:db8::/32_p_x_1699999980 | d.ip_10_0_0_0/8.p")

	given("{key: ip, not_cidr: [10.0.0.0/8, 'fd00::/8'], " + perMinute("1") + "}, {key: ip, value: '1*', " +
		perMinute("2") + "}")
	f("(ip,10.1.2.4)", "2 per MINUTE | d_ip_10.1.2.4_1699999980 | d.ip_1*")
	f("(ip,11.1.2.4)", "1 per MINUTE | d_ip_11.1.2.4_1699999980 | d.ip_10_0_0_0/8")
	f("(ip,fd00::1)", "none")
	f("(ip,::1)", "1 per MINUTE | d_ip_::1_1699999980 | d.ip_10_0_0_0/8")

	given("{key: ip, cidr: [10.0.0.0/8], prefix_length: {v4: 24}, value_to_metric: true, " + perMinute("1") +
		", descriptors: [{key: p, detailed_metric: true, " + perMinute("2") +
		"}]}, {key: net, cidr: ['::/0', 10.0.0.0/8], share_threshold: true, detailed_metric: true, " +
		perMinute("3") + "}")
	f("(ip,10.1.2.3)", "1 per MINUTE | d_ip_10.1.2.0/24_1699999980 | d.ip_10_1_2_0/24")
	f("(ip,10.1.2.3)(p,x)", "2 per MINUTE | d_ip_10.1.2.0/24_p_x_1699999980 | d.ip_10_1_2_0/24.p_x")
	f("(net,10.1.2.3)", "3 per MINUTE | d_net_10.0.0.0/8_1699999980 | d.net_10_0_0_0/8")
	f("(net,::2)", "3 per MINUTE | d_net_::/0_1699999980 | d.net___/0")
}

// A list of values is as many entries; with a group they are one.
func TestFind_values(t *testing.T) {
	list := `{key: path, values: [/login, '/a\*', 1.50], ` + perMinute("5") +
		", descriptors: [{key: m, values: [GET, PUT], " +
		perMinute("6") + "}]}, {key: path, value: /*, " + perMinute("7") +
		"}, {key: path, values: [/x, /y, '/z\\*'], share_threshold: true, group: ac~counts, " + perMinute("8") +
		", descriptors: [{key: m, " + perMinute("9") + "}]}"
	var r *Rules
	f := func(descriptor, want string) {
		t.Helper()
		if got := walk(t, r, descriptor); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, inDomain(list))
	f("(path,/login)", "5 per MINUTE | d_path_/login_1699999980 | d.path_/login")
	f("(path,/a*)", "5 per MINUTE | d_path_/a*_1699999980 | d.path_/a*")
	f("(path,1.50)", "5 per MINUTE | d_path_1.50_1699999980 | d.path_1.50")
	f("(path,/ab)", "7 per MINUTE | d_path_/ab_1699999980 | d.path_/*")
	f("(path,/login)(m,PUT)", "6 per MINUTE | d_path_/login_m_PUT_1699999980 | d.path_/login.m_PUT")
	f("(path,/a*)(m,GET)", "6 per MINUTE | d_path_/a*_m_GET_1699999980 | d.path_/a*.m_GET")
	f("(path,/a*)(m,POST)", "none")
	f("(path,/x)", "8 per MINUTE | d_path_ac~counts_1699999980 | d.path_ac~counts")
	f("(path,/z*)", "8 per MINUTE | d_path_ac~counts_1699999980 | d.path_ac~counts")
	f("(path,/zz)", "7 per MINUTE | d_path_/zz_1699999980 | d.path_/*")
	f("(path,ac~counts)", "none")
	f("(path,/y)(m,1)", "9 per MINUTE | d_path_ac~counts_m_1_1699999980 | d.path_ac~counts.m")

	r = mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}, EscapedKeys: true}, inDomain(list))
	f("(path,/login)", "5 per MINUTE | d|path=/login|m1|1699999980 | d.path_/login")
	f("(path,/x)", "8 per MINUTE | d|path~ac%7Ecounts|m1|1699999980 | d.path_ac~counts")

	var all strings.Builder // many values, so that they go into a map
	for i := range 300 {
		fmt.Fprintf(&all, "v%d, ", i)
	}
	r = mustLoad(t, Options{},
		inDomain("{key: k, values: ["+all.String()+"], share_threshold: true, group: g, "+perMinute("1")+
			"}, {key: l, values: ["+all.String()+"], "+perMinute("1")+"}"))
	f("(k,v299)", "1 per MINUTE | d_k_g_1699999980 | d.k_g")
	f("(k,v300)", "none")
	f("(l,v299)", "1 per MINUTE | d_l_v299_1699999980 | d.l_v299")
}

// Nested lists, also of networks and groups, are compiled once for each value of the list above.
func TestFind_nestedLists(t *testing.T) {
	r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}},
		inDomain("{key: a, values: [x, y], descriptors: [{key: ip, cidr: [10.0.0.0/8, "+
			"11.0.0.0/8], share_threshold: true, descriptors: [{key: b, values: [1, 2], share_threshold: true, "+
			"group: g, "+
			perMinute("3")+"}]}, {key: ip, cidr: [10.1.0.0/16], not_cidr: [10.1.2.0/24], "+perMinute("4")+"}]}"))
	for _, a := range []string{"x", "y"} {
		for _, network := range []string{"10.2.3.4 10.0.0.0/8", "10.1.2.4 10.0.0.0/8", "11.0.0.1 11.0.0.0/8"} {
			address, prefix, _ := strings.Cut(network, " ")
			for _, b := range []string{"1", "2"} {
				want := fmt.Sprintf("3 per MINUTE | d_a_%s_ip_%s_b_g_1699999980 | d.a_%s.ip_10_0_0_0/8.b_g", a,
					prefix, a)
				if got := walk(t, r, fmt.Sprintf("(a,%s)(ip,%s)(b,%s)", a, address, b)); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}
		}
		want := fmt.Sprintf("4 per MINUTE | d_a_%s_ip_10.1.3.3_1699999980 | d.a_%s.ip_10_1_0_0/16", a, a)
		if got := walk(t, r, fmt.Sprintf("(a,%s)(ip,10.1.3.3)", a)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The lists of merged files are those of one level.
func TestMatch_merged(t *testing.T) {
	o := Options{Settings: Settings{MergeDomains: true, NearRatio: 0.8}}
	a := File{"a.yaml", []byte("domain: d\ndescriptors:\n- {key: ip, cidr: [10.0.0.0/8], " + perMinute("1") +
		"}\n- {key: v, values: [x], " + perMinute("2") + "}\n")}
	b := File{"b.yaml", []byte("domain: d\ndescriptors:\n- {key: ip, cidr: [10.1.0.0/16], " + perMinute("3") + "}\n")}
	r := mustLoad(t, o, a, b)
	if got := walk(t, r, "(ip,10.1.2.3)"); got != "3 per MINUTE | d_ip_10.1.2.3_1699999980 | d.ip_10_1_0_0/16" {
		t.Error(got)
	}
	if got := walk(t, r, "(ip,10.2.2.3)"); got != "1 per MINUTE | d_ip_10.2.2.3_1699999980 | d.ip_10_0_0_0/8" {
		t.Error(got)
	}
	refused(t, o, []File{a, {"b.yaml", []byte("domain: d\ndescriptors:\n- {key: ip, cidr: [11.0.0.0/8, 10.0.0.0/8]}\n" +
		"- {key: v, values: [y, x]}\n- {key: v, values: [a], share_threshold: true, group: x}\n")}},
		`b.yaml:3:32: domain "d", descriptor ip_{11.0.0.0/8,…}: prefix 10.0.0.0/8 is already configured in a.yaml:3:20; a prefix may stand once in a list`,
		`b.yaml:4:24: domain "d", descriptor v_{y,…}: values[1] "x" is already configured in a.yaml:4:21; key and value may stand once in a list`,
		`b.yaml:5:55: domain "d", descriptor v_x: group "x" is also the value of a.yaml:4:21; groups, values, patterns and prefixes of one key must differ`)
}

// networkModel is a level of entries with networks as a linear scan reads it.
type networkModel struct{ cidr, not []netip.Prefix }

// choose is the entry with the longest prefix that contains a, of those that do not take it out; -1 without.
func choose(model []networkModel, a netip.Addr) (entry int, prefix netip.Prefix) {
	entry = -1
	for i, m := range model {
		out := false
		for _, p := range m.not {
			out = out || p.Contains(a)
		}
		if out {
			continue
		}
		for _, p := range m.cidr {
			if p.Contains(a) && (entry < 0 || p.Bits() > prefix.Bits()) {
				entry, prefix = i, p
			}
		}
	}
	return entry, prefix
}

// FuzzNetworks holds a level of networks to the linear scan: which entry decides, under which key.
func FuzzNetworks(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(3), uint64(4))
	f.Fuzz(func(t *testing.T, seed, more uint64) { compareNetworks(t, rand.New(rand.NewPCG(seed, more))) })
}

func TestNetworks_linear(t *testing.T) {
	for seed := range uint64(200) {
		compareNetworks(t, rand.New(rand.NewPCG(seed, 5)))
	}
}

func compareNetworks(t *testing.T, r *rand.Rand) {
	t.Helper()
	address := func() netip.Addr {
		var b [16]byte
		for i := range b {
			b[i] = []byte{0, 0, 0xff, 0x80, byte(r.Uint32())}[r.IntN(5)]
		}
		if a := netip.AddrFrom16(b); r.IntN(2) == 0 && !a.Is4In6() {
			return a
		}
		return netip.AddrFrom4([4]byte(b[:]))
	}
	taken := map[netip.Prefix]bool{}
	prefixes := func(n int, once map[netip.Prefix]bool) (out []netip.Prefix) {
		for range n {
			a := address()
			if p, _ := a.Prefix(r.IntN(a.BitLen() + 1)); !once[p] {
				once[p] = true
				out = append(out, p)
			}
		}
		return out
	}
	var model []networkModel
	var share []bool
	var entries []string
	var asked []netip.Addr
	for i := range 1 + r.IntN(8) {
		m := networkModel{prefixes(1+r.IntN(5), taken), prefixes(r.IntN(4), map[netip.Prefix]bool{})}
		if m.cidr == nil {
			continue
		}
		text := fmt.Sprintf("{key: ip, cidr: ['%v']", strings.Trim(strings.ReplaceAll(fmt.Sprint(m.cidr), " ", "','"),
			"[]"))
		if m.not != nil {
			text += fmt.Sprintf(", not_cidr: ['%v']", strings.Trim(strings.ReplaceAll(fmt.Sprint(m.not), " ", "','"),
				"[]"))
		}
		model, share = append(model, m), append(share, r.IntN(2) == 0)
		if share[len(share)-1] {
			text += ", share_threshold: true"
		}
		entries = append(entries, fmt.Sprintf("%s, rate_limit: {unit: minute, requests_per_unit: %d}}", text,
			len(model)))
		for _, p := range append(m.cidr, m.not...) {
			asked = append(asked, p.Addr())
		}
		_ = i
	}
	rules := mustLoad(t, Options{EscapedKeys: true}, inDomain(strings.Join(entries, ", ")))
	for range 20 {
		asked = append(asked, address())
	}
	for _, a := range asked {
		spelled := a.String()
		if r.IntN(3) == 0 && a.Is4() {
			spelled = "::FFFF:" + spelled
		}
		if r.IntN(3) == 0 && a.Is6() {
			spelled = strings.ToUpper(a.StringExpanded())
		}
		want := "none"
		if i, p := choose(model, a); i >= 0 {
			text := a.String()
			if share[i] {
				if text = p.String(); p.Bits() == a.BitLen() {
					text = p.Addr().String()
				}
			}
			want = fmt.Sprintf("%d per MINUTE | d|ip~%s|m1|1699999980", i+1, text)
		}
		if got := walk(t, rules, "(ip,"+spelled+")"); got != want && !strings.HasPrefix(got, want+" | ") {
			t.Fatalf("%s: %s, want %s of\n%s", spelled, got, want, strings.Join(entries, "\n"))
		}
	}
}

func TestMatch_view(t *testing.T) {
	r := mustLoad(t, Options{}, inDomain("{key: path, values: [/a, /b], "+perMinute("1")+
		"}, {key: path, values: [/c, /d], share_threshold: true, group: g, "+perMinute("2")+
		"}, {key: ip, cidr: [10.0.0.0/8, '2001:DB8::/32'], not_cidr: [10.1.0.0/16], prefix_length: {v6: 64}, "+
		perMinute("3")+
		"}, {key: ip, cidr: [12.0.0.0/8, 13.0.0.0/8], share_threshold: true, descriptors: [{key: k, "+perMinute("4")+
		"}]}, {key: other, not_cidr: ['fd00::/8'], "+perMinute("5")+"}"))
	var text bytes.Buffer
	must.Succeed(t, r.WriteText(&text))
	const rest = ", shadow_mode: false, quota_mode: false\n"
	if d := cmp.Diff("d.path_/a: unit=MINUTE requests_per_unit=1"+rest+
		"d.path_/b: unit=MINUTE requests_per_unit=1"+rest+
		"d.path_g: unit=MINUTE requests_per_unit=2"+rest+"d.ip_{10.0.0.0/8,…}: unit=MINUTE requests_per_unit=3"+rest+
		"d.ip_{12.0.0.0/8,…}.k: unit=MINUTE requests_per_unit=4"+rest+
		"d.other_{not fd00::/8}: unit=MINUTE requests_per_unit=5"+rest,
		text.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var levels []string
	for _, rule := range r.View()[0].Rules {
		b, err := json.Marshal(rule.Descriptors)
		must.Succeed(t, err)
		levels = append(levels, string(b))
	}
	if d := cmp.Diff([]string{
		`[{"key":"path","value":"/a"}]`, `[{"key":"path","value":"/b"}]`,
		`[{"key":"path","values":["/c","/d"],"group":"g","share_threshold":true}]`,
		`[{"key":"ip","cidr":["10.0.0.0/8","2001:db8::/32"],"not_cidr":["10.1.0.0/16"],"prefix_length":{"v6":64}}]`,
		`[{"key":"ip","cidr":["12.0.0.0/8","13.0.0.0/8"],"share_threshold":true},{"key":"k"}]`,
		`[{"key":"other","not_cidr":["fd00::/8"]}]`,
	}, levels); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Rules below an entry repeat a part of its lists only.
func TestMatch_viewBelow(t *testing.T) {
	var prefixes strings.Builder
	for i := range 200 {
		fmt.Fprintf(&prefixes, "10.%d.0.0/16, ", i)
	}
	r := mustLoad(t, Options{},
		inDomain("{key: ip, cidr: ["+prefixes.String()+"], "+perMinute("1")+", descriptors: [{key: k, "+
			perMinute("2")+"}]}"))
	rules := r.View()[0].Rules
	own, above := rules[0].Descriptors[0].CIDR, rules[1].Descriptors[0].CIDR
	if len(own) != 200 || len(above) != 100 || above[98] != "10.98.0.0/16" || above[99] != "…" {
		t.Errorf("%d prefixes, below %d: %v", len(own), len(above), above)
	}
}

// What a reload's log line counts of lists that changed.
func TestMatch_changes(t *testing.T) {
	f := func(before, after string, want ...string) {
		t.Helper()
		c := mustLoad(t, Options{}, inDomain(after)).ChangesSince(mustLoad(t, Options{}, inDomain(before)))
		if d := cmp.Diff(want, c.First); d != "" {
			t.Errorf("%s to %s (-want +got):\n%s", before, after, d)
		}
	}
	limit := perMinute("1")
	f("{key: a, values: [x, y], "+limit+"}", "{key: a, values: [y, z], "+limit+"}", "+ d a_z: 1 per MINUTE",
		"- d a_x: 1 per MINUTE")
	f("{key: a, values: [x, y], share_threshold: true, group: g, "+limit+"}",
		"{key: a, values: [x], share_threshold: true, group: g, "+limit+"}", "~ d a_g: 1 per MINUTE")
	ip := func(more string) string { return "{key: ip, cidr: [10.0.0.0/8, " + more + ", " + limit + "}" }
	f(ip("11.0.0.0/8]"), ip("11.0.0.0/8]"))
	f(ip("11.0.0.0/8]"), ip("12.0.0.0/8]"), "~ d ip_{10.0.0.0/8,…}: 1 per MINUTE")
	f(ip("11.0.0.0/8]"), ip("11.0.0.0/8], not_cidr: [10.1.0.0/16]"), "~ d ip_{10.0.0.0/8,…}: 1 per MINUTE")
	f(ip("11.0.0.0/8]"), ip("11.0.0.0/8], prefix_length: {v4: 24}"), "~ d ip_{10.0.0.0/8,…}: 1 per MINUTE")
	f(ip("11.0.0.0/8], share_threshold: true"), ip("11.0.0.0/8, 12.0.0.0/8], share_threshold: true"),
		"~ d ip_{10.0.0.0/8,…}: 1 per MINUTE")
	f("{key: ip, cidr: [10.0.0.0/8], descriptors: [{key: b, "+limit+"}]}",
		"{key: ip, cidr: [10.0.0.0/8], not_cidr: [10.0.0.0/9], descriptors: [{key: b, "+limit+"}]}",
		"~ d ip_{10.0.0.0/8}.b: 1 per MINUTE")
}

// What lists may have wrong: the whole report, with positions.
func TestMatch_rejections(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = "f.yaml:" + want[i]
		}
		refused(t, Options{}, []File{{"f.yaml", []byte("domain: d\ndescriptors:\n" + list)}}, want...)
	}
	const e = "- key: a\n  "
	// Which keys stand together, and what they hold.
	f("- key: a\n  value: x\n  values: [y]\n  cidr: [10.0.0.0/8]\n",
		`5:3: domain "d", descriptor a_x: value and values exclude each other; the first is at line 4, column 3`,
		`6:3: domain "d", descriptor a_x: value and cidr exclude each other; the first is at line 4, column 3`,
		`6:3: domain "d", descriptor a_x: values and cidr exclude each other; the first is at line 5, column 3`)
	f(e+"not_cidr: [10.0.0.0/8]\n  value: x\n",
		`5:3: domain "d", descriptor a_x: value and not_cidr exclude each other; the first is at line 4, column 3`)
	f(e+"values: [x]\n  not_cidr: [10.0.0.0/8]\n",
		`5:3: domain "d", descriptor a_{x}: values and not_cidr exclude each other; the first is at line 4, column 3`)
	f(e + "value:\n  cidr: [10.0.0.0/8]\n")
	f(e+"values: {x: y}\n", `4:12: domain "d", descriptor a: values must be a list, not a map`)
	f(e+"values: x\n", `4:11: domain "d", descriptor a: values must be a list: [x]`)
	f(e+"cidr: 10.0.0.0/8\n", `4:9: domain "d", descriptor a: cidr must be a list: [10.0.0.0/8]`)
	f(e+"values:\n", `4:10: domain "d", descriptor a: values: null is empty; leave the line out, or list values`)
	f(e+"cidr: null\n  not_cidr: ~\n",
		`4:9: domain "d", descriptor a: cidr: null is empty; leave the line out, or list prefixes`,
		`5:13: domain "d", descriptor a: not_cidr: null is empty; leave the line out, or list prefixes`)
	f(e+"values: []\n", `4:11: domain "d", descriptor a: values is empty; leave it out, or list values`)
	f(e+"cidr: []\n", `4:9: domain "d", descriptor a: cidr is empty; leave it out, or list prefixes`)
	f(e+"values: [x"+strings.Repeat(", x", 1000)+"]\n",
		`4:11: domain "d", descriptor a_{x,…}: values has 1001 items, at most 1000 are allowed`)
	f(e+"cidr: [x"+strings.Repeat(", x", 10_000)+"]\n",
		`4:9: domain "d", descriptor a_{x,…}: cidr has 10001 items, at most 10000 are allowed`)
	f(e+"values: [x, [y], {z: 1}]\n", `4:15: domain "d", descriptor a_{x,…}: values[1] must be a text, not a list`,
		`4:21: domain "d", descriptor a_{x,…}: values[2] must be a text, not a map`)
	f(e+"cidr:\n  - 10.0.0.0/8\n  - 2001:db8::\n",
		`6:5: domain "d", descriptor a_{10.0.0.0/8,…}: cidr[1] must be a prefix, not a map; quote addresses that end in a colon`)

	// Values.
	f(e+"values: [a, 'a*', '', b, ~, a, '\\*', '\\*']\n",
		`4:15: domain "d", descriptor a_{a,…}: values[1] "a*" has a wildcard; write \* for a star, or an entry with value: a*`,
		`4:21: domain "d", descriptor a_{a,…}: values[2] is empty; an entry without value takes any value`,
		`4:28: domain "d", descriptor a_{a,…}: values[4] is empty; an entry without value takes any value`,
		`4:31: domain "d", descriptor a_{a,…}: values[5] "a" stands twice; the first is values[0]`,
		`4:40: domain "d", descriptor a_{a,…}: values[7] "\\*" stands twice; the first is values[6]`)
	f("- key: p\n  value: /login\n- key: p\n  values: [/x, /login]\n- key: p\n  value: /x\n- key: q\n  values: [/x]\n",
		`6:16: domain "d", descriptor p_{/x,…}: values[1] "/login" is already configured in f.yaml:3:3; key and value may stand once in a list`,
		`7:3: domain "d", descriptor p_/x: this descriptor is already configured in f.yaml:6:12; key and value may stand once in a list`)
	f("- key: p\n  descriptors:\n  - key: q\n    values: [x]\n  - key: q\n    values: [x]\n"+
		"    share_threshold: true\n    group: g\n",
		`8:14: domain "d", descriptor p.q_g: values[0] "x" is already configured in f.yaml:6:14; key and value may stand once in a list`)

	// Groups.
	f(e+"values: [x]\n  share_threshold: true\n",
		`5:20: domain "d", descriptor a_{x}: values with share_threshold need group, the text that stands for them in keys`)
	f(e+"values: [x]\n  share_threshold: true\n  group: ''\n",
		`5:20: domain "d", descriptor a_{x}: values with share_threshold need group, the text that stands for them in keys`)
	f(e+"group: g\n", `4:10: domain "d", descriptor a: group needs values with share_threshold`)
	f(e+"values: [x]\n  group: g\n", `5:10: domain "d", descriptor a_g: group needs values with share_threshold`)
	f(e+"cidr: [10.0.0.0/8]\n  share_threshold: true\n  group: g\n",
		`6:10: domain "d", descriptor a_{10.0.0.0/8}: group needs values with share_threshold`)
	f(e + "group:\n  prefix_length:\n")
	const g = "\n  share_threshold: true\n  group: "
	const tail = "; groups, values, patterns and prefixes of one key must differ"
	f("- key: a\n  value: x\n- key: a\n  value: y*\n  share_threshold: true\n"+e+"values: [v]"+g+"x\n"+e+"values: [w]"+
		g+"y*\n"+
		e+"values: [u]"+g+"x\n- key: b\n  values: [k]"+g+"x\n",
		`11:10: domain "d", descriptor a_x: group "x" is also the value of f.yaml:3:3`+tail,
		`15:10: domain "d", descriptor a_y*: group "y*" is also the pattern of f.yaml:5:3`+tail,
		`19:10: domain "d", descriptor a_x: group "x" is also the value of f.yaml:3:3`+tail)
	f(e+"values: [x, g]"+g+"g\n",
		`4:15: domain "d", descriptor a_g: values[1] "g" is also the group of f.yaml:6:10`+tail)
	f(e+"values: [x]"+g+"g\n"+e+"value: g\n",
		`7:3: domain "d", descriptor a_g: value "g" is also the group of f.yaml:6:10`+tail)
	f(e+"values: [x]"+g+"10.0.0.0/8\n"+e+"cidr: [10.0.0.0/8]\n  share_threshold: true\n"+e+"value: 10.0.0.0/8\n",
		`8:10: domain "d", descriptor a_{10.0.0.0/8}: cidr[0] "10.0.0.0/8" is also the group of f.yaml:6:10`+tail,
		`10:3: domain "d", descriptor a_10.0.0.0/8: value "10.0.0.0/8" is also the group of f.yaml:6:10`+tail)
	f(e+"cidr: [10.0.0.0/8, 10.1.2.3]\n  share_threshold: true\n"+e+"value: 10.1.2.3\n",
		`6:3: domain "d", descriptor a_10.1.2.3: value "10.1.2.3" is also the prefix of f.yaml:4:22`+tail)
	f(e+"values: [x]"+g+"10.1.2.3\n"+e+"cidr: [10.0.0.0/8]\n",
		`6:10: domain "d", descriptor a_10.1.2.3: group "10.1.2.3" is also an address of f.yaml:7:3`+tail)
	f(e + "cidr: [10.0.0.0/8, 10.1.2.3]\n" + e + "value: 10.1.2.3\n" + e +
		"value: 10.0.0.0/8\n") // each by its own limit

	// Prefixes.
	f(
		e+
			"cidr: [10.0.0.0/33, x, ~, 10.0.0.0/08, 'fe80::%eth0/64', 10.1.2.3/8, '2001:db8::1/32', "+
			"'::ffff:10.0.0.0/104', '::ffff:10.1.2.3', 10.0.0.0/8, 10.0.0.0/8]\n",
		`4:10: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[0] "10.0.0.0/33" is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32`,
		`4:23: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[1] "x" is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32`,
		`4:26: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[2] "" is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32`,
		`4:29: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[3] "10.0.0.0/08" is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32`,
		`4:42: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[4] "fe80::%eth0/64" is no IP prefix; write an address and its length, such as 10.0.0.0/8 or 2001:db8::/32`,
		`4:60: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[5] 10.1.2.3/8 has bits beyond its length; write 10.0.0.0/8`,
		`4:72: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[6] 2001:db8::1/32 has bits beyond its length; write 2001:db8::/32`,
		`4:90: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[7] ::ffff:10.0.0.0/104 is an IPv4 prefix; write 10.0.0.0/8`,
		`4:113: domain "d", descriptor a_{10.0.0.0/33,…}: cidr[8] ::ffff:10.1.2.3 is an IPv4 prefix; write 10.1.2.3`,
		`4:144: domain "d", descriptor a_{10.0.0.0/33,…}: prefix 10.0.0.0/8 is already configured in f.yaml:4:132; a prefix may stand once in a list`)
	f(e+"not_cidr: [10.0.0.1/8]\n",
		`4:14: domain "d", descriptor a_{not 10.0.0.1/8}: not_cidr[0] 10.0.0.1/8 has bits beyond its length; write 10.0.0.0/8`)
	f(e+"cidr: [10.0.0.0/8]\n"+e+"cidr: [11.0.0.0/8, 10.0.0.0/8]\n- key: b\n  cidr: [10.0.0.0/8]\n"+e+
		"cidr: ['::/0']\n"+e+"not_cidr: ['fd00::/8']\n",
		`6:22: domain "d", descriptor a_{11.0.0.0/8,…}: prefix 10.0.0.0/8 is already configured in f.yaml:4:10; a prefix may stand once in a list`,
		`12:13: domain "d", descriptor a_{not fd00::/8}: prefix ::/0 is already configured in f.yaml:10:10; a prefix may stand once in a list`)

	// prefix_length.
	f(e+"prefix_length: {v4: 24}\n", `4:19: domain "d", descriptor a: prefix_length needs cidr or not_cidr`)
	f(e+"values: [x]\n  prefix_length: {}\n",
		`5:18: domain "d", descriptor a_{x}: prefix_length needs cidr or not_cidr`)
	f(e+"cidr: [10.0.0.0/8]\n  share_threshold: true\n  prefix_length: {v4: 24}\n",
		`6:19: domain "d", descriptor a_{10.0.0.0/8}: prefix_length and share_threshold exclude each other`)
	f(e+"cidr: [10.0.0.0/8, 10.1.0.0/16, 10.2.0.0/16, '2001:db8::/32']\n  prefix_length: {v4: 8, v6: 31}\n",
		`5:23: domain "d", descriptor a_{10.0.0.0/8,…}: prefix_length.v4 is 8, which is wider than cidr[1] 10.1.0.0/16`,
		`5:30: domain "d", descriptor a_{10.0.0.0/8,…}: prefix_length.v6 is 31, which is wider than cidr[3] 2001:db8::/32`)
	f(e+"cidr: [10.0.0.0/8]\n  prefix_length: {v4: 33, v6: 129}\n",
		`5:23: domain "d", descriptor a_{10.0.0.0/8}: prefix_length.v4 is 33; allowed are whole numbers from 1 to 32`,
		`5:31: domain "d", descriptor a_{10.0.0.0/8}: prefix_length.v6 is 129; allowed are whole numbers from 1 to 128`)
	f(e+"cidr: [10.0.0.0/8]\n  prefix_length: {v4: 0, v5: 1}\n",
		`5:23: domain "d", descriptor a_{10.0.0.0/8}: prefix_length.v4 is 0; allowed are whole numbers from 1 to 32`,
		`5:26: domain "d", descriptor a_{10.0.0.0/8}: unknown key "v5" in prefix_length; did you mean v4? Allowed are v4 or v6`)
	f(e+"cidr: [10.0.0.0/8]\n  prefix_length: 24\n",
		`5:18: domain "d", descriptor a_{10.0.0.0/8}: prefix_length must be a map with v4 or v6, not a number (24)`)
	f(e + "not_cidr: [10.0.0.0/8]\n  prefix_length: {v4: 1, v6: 1}\n")

	// share_threshold alone still needs a wildcard.
	f(e+"value: x\n  share_threshold: true\n",
		`5:20: domain "d", descriptor a_x: share_threshold needs a value with a wildcard; "x" has no *`)
}

// Lists may not make more of a domain than it could be written as.
func TestMatch_multiplied(t *testing.T) {
	values := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "v%d, ", i)
		}
		return "values: [" + b.String() + "]"
	}
	f := func(list string, want ...string) {
		t.Helper()
		refused(t, Options{}, []File{{"f.yaml", []byte("domain: d\ndescriptors:\n" + list)}}, want...)
	}
	f("- key: a\n  "+values(1000)+"\n  descriptors:\n  - key: b\n    "+values(999)+"\n    descriptors: [{key: c}]\n",
		`f.yaml:4:11: domain "d", descriptor a_{v0,…}: values of nested entries make 1999000 rules; at most 100000 per domain are allowed`)
	f("- key: a\n  "+values(10)+"\n  descriptors:\n  - key: b\n    "+values(1000)+
		"\n- key: c\n  descriptors:\n  - key: b\n    "+
		values(1000)+"\n    descriptors:\n    - {key: d, "+values(100)+"}\n",
		`f.yaml:11:13: domain "d", descriptor c.b_{v0,…}: values of nested entries make 111010 rules; at most 100000 per domain are allowed`)
	deep := ""
	for i := range 20 {
		indent := strings.Repeat("  ", i)
		deep += indent + "- key: a\n" + indent + "  " + values(1000) + "\n" + indent + "  descriptors:\n"
	}
	f(deep,
		`f.yaml:4:11: domain "d", descriptor a_{v0,…}: values of nested entries make 2147483647 rules; at most 100000 per domain are allowed`)
	f("- key: a\n  " + values(99) + "\n  descriptors:\n  - key: b\n    " + values(1000) + "\n")
	var prefixes strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&prefixes, "%d.%d.0.0/16, ", 10+i/256, i%256)
	}
	f("- key: a\n  "+values(11)+"\n  descriptors: [{key: ip, share_threshold: true, cidr: ["+prefixes.String()+"]}]\n",
		`f.yaml:4:11: domain "d", descriptor a_{v0,…}: values of nested entries make 110011 rules; at most 100000 per domain are allowed`)
	f("- key: ip\n  share_threshold: true\n  cidr: ["+prefixes.String()+"]\n  descriptors:\n  - {key: a, "+values(10)+
		"}\n",
		`f.yaml:5:9: domain "d", descriptor ip_{10.0.0.0/16,…}: prefixes of nested entries make 110000 rules; at most 100000 per domain are allowed`)
	const limit = "{unit: day, requests_per_unit: 1}"
	f("- key: a\n  "+values(1000)+"\n  descriptors:\n  - key: b\n    "+values(40)+"\n    rate_limits: ["+limit+
		", {unit: hour, requests_per_unit: 1}, {unit: week, requests_per_unit: 1}]\n",
		`f.yaml:4:11: domain "d", descriptor a_{v0,…}: values of nested entries make 121000 rules; at most 100000 per domain are allowed`)
	f("- key: a\n  " + values(1000) + "\n  descriptors: [{key: ip, cidr: [" + prefixes.String() +
		"]}]\n") // one entry each
}

func TestMatch_warnings(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		checkWarnings(t, "domain: d\ndescriptors:\n"+list, want...)
	}
	f("- key: ip\n  cidr: [10.0.0.0/8, 11.0.0.0/8]\n  not_cidr: [192.168.0.0/16, 10.1.0.0/16, 'fd00::/8']\n",
		`f.yaml:5:14: domain "d", descriptor ip_{10.0.0.0/8,…}: not_cidr[0] 192.168.0.0/16 has no effect: no prefix of cidr contains it`,
		`f.yaml:5:43: domain "d", descriptor ip_{10.0.0.0/8,…}: not_cidr[2] fd00::/8 has no effect: no prefix of cidr contains it`)
	f("- key: ip\n  cidr: [10.1.0.0/16, 12.0.0.0/8]\n  not_cidr: [10.0.0.0/8, 10.0.0.0/7]\n",
		`f.yaml:4:10: domain "d", descriptor ip_{10.1.0.0/16,…}: cidr[0] 10.1.0.0/16 never matches: not_cidr[0] takes all of it`)
	f("- key: ip\n  cidr: [10.1.0.0/16]\n  not_cidr: [10.1.0.0/16]\n",
		`f.yaml:4:10: domain "d", descriptor ip_{10.1.0.0/16}: cidr[0] 10.1.0.0/16 never matches: not_cidr[0] takes all of it`)
	f("- key: ip\n  cidr: [10.1.0.0/16, 10.2.0.0/16]\n  not_cidr: [10.1.128.0/17, 10.1.0.0/18, 10.1.64.0/18, "+
		"10.2.0.0/17]\n",
		`f.yaml:4:10: domain "d", descriptor ip_{10.1.0.0/16,…}: cidr[0] 10.1.0.0/16 never matches: prefixes of not_cidr take all of it`)
	f("- key: ip\n  not_cidr: [10.1.0.0/16]\n- key: ip\n  value: 10.1.2.3\n- key: ip\n  value: 11.*\n- key: ip\n" +
		"  cidr: [11.0.0.0/8]\n")
	f("- key: p\n  values: [x1, x2]\n- key: p\n  value: x*\n- key: p\n  values: [x3]\n  share_threshold: true\n" +
		"  group: g\n")
	f(
		// one rule has the name
		"- key: p\n  values: [x1, x2]\n  rate_limit: {unit: day, requests_per_unit: 1, name: n}\n")
	f("- key: p\n  values: [x1, x2]\n  shadow_mode: true\n",
		`f.yaml:5:16: domain "d", descriptor p_{x1,…}: shadow_mode has no effect on a descriptor without rate_limit`)
}

// A rule's name is that of the rules of all its values.
func TestMatch_replaces(t *testing.T) {
	r := mustLoad(t, Options{},
		inDomain("{key: a, values: [x, y], rate_limit: {unit: day, requests_per_unit: 1, name: n}}, "+
			"{key: ip, cidr: [10.0.0.0/8, 11.0.0.0/8], share_threshold: true, rate_limit: {unit: day, "+
			"requests_per_unit: 1, replaces: [{name: n}]}}"))
	d := r.Domain("d")
	for _, a := range []string{"(a,x)", "(a,y)"} {
		for _, ip := range []string{"(ip,10.1.1.1)", "(ip,11.1.1.1)"} {
			if !d.Find(entriesOf(t, ip)).ReplacesID(d.Find(entriesOf(t, a)).ID) {
				t.Errorf("%s does not replace %s", ip, a)
			}
		}
	}
}

func TestExplain_match(t *testing.T) {
	r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}}, File{"f.yaml", []byte(`domain: d
descriptors:
- {key: ip, value: 10.1.2.3}
- {key: ip, cidr: [10.0.0.0/8], rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: ip, cidr: [10.1.0.0/16], not_cidr: [10.1.9.0/24], descriptors: [{key: x, rate_limit: {unit: minute, requests_per_unit: 3}}]}
- {key: ip, cidr: ['2001:db8::/32', 'fd00::/8'], share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: ip, value: '10.1.*', rate_limit: {unit: minute, requests_per_unit: 7}}
- {key: ip}
- {key: p, values: [/a, /b], share_threshold: true, group: g, rate_limit: {unit: minute, requests_per_unit: 8}}
`)})
	f := func(descriptor, want string) {
		t.Helper()
		x := r.ExplainAt("d", entriesOf(t, descriptor), 1700000000)
		if d := cmp.Diff(want[1:], x.Text()); d != "" {
			t.Errorf("%s (-want +got):\n%s", descriptor, d)
		}
	}
	f("(ip,10.1.9.1)", `
domain      d
descriptor  (ip, 10.1.9.1)

1. ip = "10.1.9.1"
   - exact (1 with other values)
   - network "10.1.0.0/16"  f.yaml:5:4, taken out by not_cidr 10.1.9.0/24
   + network "10.0.0.0/8"  f.yaml:4:4
   => ip_{10.0.0.0/8}: longest network that contains the address and does not take it out by not_cidr; no exact value matches

result      5 per MINUTE
reason      ip_{10.0.0.0/8} (f.yaml:4:4) decides: 5 per MINUTE
counter key d_ip_10.1.9.1_1699999980
metric key  d.ip_10_0_0_0/8
`)
	f("(ip,FD00::1)", `
domain      d
descriptor  (ip, FD00::1)

1. ip = "FD00::1"
   - exact (1 with other values)
   + network "fd00::/8"  f.yaml:6:4
   => ip_{2001:db8::/32,…}: longest network that contains the address; no exact value matches

result      4 per MINUTE
reason      ip_{2001:db8::/32,…} (f.yaml:6:4) decides: 4 per MINUTE
counter key d_ip_fd00::/8_1699999980
metric key  d.ip_2001_db8__/32
note        share_threshold: all values in "fd00::/8" at entry 1 share one counter
`)
	f("(ip,10.1.2.4:80)", `
domain      d
descriptor  (ip, 10.1.2.4:80)

1. ip = "10.1.2.4:80"
   - exact (1 with other values)
   - network (4, but the value is no IP address)
   + wildcard "10.1.*"  f.yaml:7:4
   => ip_10.1.*: wildcard matches; no exact value or network does

result      7 per MINUTE
reason      ip_10.1.* (f.yaml:7:4) decides: 7 per MINUTE
counter key d_ip_10.1.2.4:80_1699999980
metric key  d.ip_10.1.*
`)
	f("(ip,11.0.0.1)", `
domain      d
descriptor  (ip, 11.0.0.1)

1. ip = "11.0.0.1"
   - exact (1 with other values)
   - network (4 that do not contain the address)
   - wildcard "10.1.*"  f.yaml:7:4
   + any value  f.yaml:8:4
   => ip: entry for any value; no exact value, network or wildcard matches

result      no limit (whitelisted)
reason      whitelisted: ip (f.yaml:8:4) has neither rate_limit nor nested descriptors
`)
	f("(ip,10.1.2.9)", `
domain      d
descriptor  (ip, 10.1.2.9)

1. ip = "10.1.2.9"
   - exact (1 with other values)
   + network "10.1.0.0/16"  f.yaml:5:4
   => ip_{10.1.0.0/16}: longest network that contains the address; no exact value matches

result      no limit (too shallow)
reason      too shallow: ip_{10.1.0.0/16} (f.yaml:5:4) has no rate_limit of its own, its limits are deeper (next key: x)
`)
	f("(p,/b)", `
domain      d
descriptor  (p, /b)

1. p = "/b"
   + exact "/b"  f.yaml:9:4
   => p_g: exact value

result      8 per MINUTE
reason      p_g (f.yaml:9:4) decides: 8 per MINUTE
counter key d_p_g_1699999980
metric key  d.p_g
note        share_threshold: all values of group "g" at entry 1 share one counter
`)
	b, err := json.Marshal(r.ExplainAt("d", []rls.Entry{{Key: "ip", Value: "10.1.9.1"}}, 0).Steps[0].Tried)
	if want := `[{"kind":"exact","count":1,"matched":false},` +
		`{"kind":"network","value":"10.1.0.0/16","at":"f.yaml:5:4","matched":false,"taken_out_by":"10.1.9.0/24"},` +
		`{"kind":"network","value":"10.0.0.0/8","at":"f.yaml:4:4","matched":true}]`; err != nil || string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
}

// The estimate of a request's cost grows with the networks that an address is looked up in.
func TestCost_networks(t *testing.T) {
	cost := func(list string) time.Duration { return mustLoad(t, Options{}, inDomain(list)).Cost(60 << 10) }
	none := cost("{key: ip, value: 10.0.0.0/8}")
	one := cost("{key: a, descriptors: [{key: b, cidr: [10.0.0.0/8, 10.1.0.0/16]}]}")
	more := cost("{key: a}, {key: ip, cidr: [10.0.0.0/8, 10.1.0.0/16], not_cidr: [10.2.0.0/16]}")
	if one < none+time.Millisecond || one > 10*none || more <= 2*one {
		t.Errorf("none %v, one %v, more %v", none, one, more)
	}
}

// It grows with the limits of lists, too.
func TestCost_lists(t *testing.T) {
	cost := func(list string) time.Duration { return mustLoad(t, Options{}, inDomain(list)).Cost(60 << 10) }
	one := cost("{key: k, rate_limit: {unit: second, requests_per_unit: 1}}")
	three := cost("{key: a, descriptors: [{key: k, rate_limits: [{unit: second, requests_per_unit: 1}, " +
		"{unit: minute, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1}]}]}")
	if three < one+time.Millisecond || three > 10*one {
		t.Errorf("one limit %v, three %v", one, three)
	}
}

// No two ways to count share a key in the escaped layout: exact values, patterns, groups, prefixes and addresses.
func TestEscapedKeys_match(t *testing.T) {
	r := mustLoad(t, Options{EscapedKeys: true}, inDomain("{key: ip, value: 10.1.2.3, "+perMinute("1")+
		"}, {key: ip, value: 2*, share_threshold: true, "+perMinute("2")+
		"}, {key: ip, values: [x, 'ip~10.1.2.4', '10.0.0.0/8'], "+perMinute("3")+
		"}, {key: ip, values: [g1, g2], share_threshold: true, group: 'g=~|', "+perMinute("4")+
		"}, {key: ip, cidr: [10.0.0.0/8], not_cidr: [10.2.0.0/16], "+perMinute("5")+
		"}, {key: ip, cidr: [10.2.0.0/15, '::/0'], share_threshold: true, "+perMinute("6")+"}, {key: ip, "+
		perMinute("7")+"}"))
	counters := map[string]string{} // the rule of each key
	for _, value := range []string{"10.1.2.3", "::ffff:10.1.2.3", "10.1.2.4", "::FFFF:10.1.2.4", "10.2.0.0/15",
		"10.2.0.1",
		"10.3.0.1", "x", "ip~10.1.2.4", "10.0.0.0/8", "g1", "g2", "g=~|", "::/0", "::1", "0::1", "2*", "20", "2~",
		"~10.1.2.4", "=x"} {
		entries := []rls.Entry{{Key: "ip", Value: value}}
		rule := r.Domain("d").Find(entries)
		key := string(r.AppendKey(nil, rule, "d", entries, 0))
		if before, taken := counters[key]; taken && before != rule.Path("d") {
			t.Errorf("%s: %s of %s is the key of %s as well", value, key, rule.Path("d"), before)
		}
		counters[key] = rule.Path("d")
	}
	if len(counters) != 15 {
		t.Errorf("%d counters: %v", len(counters), counters)
	}
}

// The limits of a list each count by the network.
func TestMatch_severalLimits(t *testing.T) {
	r := mustLoad(t, Options{}, inDomain("{key: ip, cidr: [10.0.0.0/8, 11.0.0.0/8], share_threshold: true, "+
		"rate_limits: [{unit: second, requests_per_unit: 1}, {unit: minute, requests_per_unit: 5, algorithm: "+
		"token_bucket}]}, "+
		"{key: v, values: [a, b], rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: minute, "+
		"requests_per_unit: 5}]}"))
	f := func(descriptor string, want ...string) {
		t.Helper()
		entries := entriesOf(t, descriptor)
		rule := r.Domain("d").Find(entries)
		for i, rule := range append([]*Rule{rule}, rule.Further...) {
			if got := string(r.AppendKey(nil, rule, "d", entries, 1699999980)); got != want[i] {
				t.Errorf("%s: limit %d counts in %s, want %s", descriptor, i+1, got, want[i])
			}
		}
	}
	f("(ip,10.1.2.3)", "d_ip_10.0.0.0/8_1699999980", "d_ip_10.0.0.0/8_~bm1")
	f("(ip,11.1.2.3)", "d_ip_11.0.0.0/8_1699999980", "d_ip_11.0.0.0/8_~bm1")
	f("(v,b)", "d_v_b_1699999980", "d_v_b_1699999980~fm1")
}

// Of many networks that not_cidr takes an address out of, the first are listed, and the one that is chosen.
func TestExplain_manyNetworks(t *testing.T) {
	var list strings.Builder
	for bits := 1; bits <= 32; bits++ {
		fmt.Fprintf(&list, "{key: ip, cidr: [0.0.0.0/%d], not_cidr: [0.0.0.0]}, ", bits)
	}
	r := mustLoad(t, Options{}, inDomain(list.String()+"{key: ip, cidr: [0.0.0.0/0], "+perMinute("1")+"}"))
	tried := r.Explain("d", []rls.Entry{{Key: "ip", Value: "0.0.0.0"}}).Steps[0].Tried
	last := tried[len(tried)-1]
	if len(tried) != maxShown+1 || last.Value != "0.0.0.0/0" || !last.Matched || tried[0].Matched {
		t.Errorf("%d networks, the last %+v", len(tried), last)
	}
}

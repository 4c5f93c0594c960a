package limits

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

// Whatever may be wrong with algorithm, burst, calendar and lists of limits, with positions.
func TestLoad_optionRejections(t *testing.T) {
	const head = "domain: d\ndescriptors:\n- key: a\n"
	const at = `domain "d", descriptor a: `
	f := func(lines string, want ...string) {
		t.Helper()
		for i := range want {
			place, message, _ := strings.Cut(want[i], " ")
			want[i] = "f.yaml:" + place + ": " + at + message
		}
		refused(t, Options{}, []File{{"f.yaml", []byte(head + "  " + lines + "\n")}}, want...)
	}
	limit := func(more string, want ...string) {
		t.Helper()
		f("rate_limit: {unit: day, requests_per_unit: 1, "+more+"}", want...)
	}
	const items = "unit, requests_per_unit, unit_multiplier, algorithm, burst, calendar, shadow_mode, name or replaces"

	limit("algorithm: gcra",
		`4:60 algorithm "gcra" is unknown; allowed are fixed_window, sliding_window or token_bucket`)
	limit("algorithm: token_bukket",
		`4:60 algorithm "token_bukket" is unknown; did you mean token_bucket? Allowed are fixed_window, sliding_window or token_bucket`)
	limit("algorithm: ''", `4:60 algorithm "" is unknown; allowed are fixed_window, sliding_window or token_bucket`)
	limit("algorithm: [x]", `4:60 algorithm must be a text, not a list`)
	limit("algorithm: Token_Bucket, burst: 1")
	limit("algorithm: null, burst: null, calendar: null")

	limit("burst: 20", `4:56 burst needs algorithm: token_bucket, but algorithm is fixed_window`)
	limit("burst: 20, algorithm: sliding_window",
		`4:56 burst needs algorithm: token_bucket, but algorithm is sliding_window`)
	for _, n := range []string{"0", "-1", "4294967296"} {
		limit("algorithm: token_bucket, burst: "+n,
			`4:81 burst is `+n+`; allowed are whole numbers from 1 to 4294967295`)
	}
	limit("algorithm: token_bucket, burst: '1'", `4:81 burst must be a number without quotes, not the text "1"`)

	limit("algorithm: sliding_window, unit_multiplier: 4294967295",
		`4:93 sliding_window and token_bucket take windows of at most 10 years, but 4294967295 × DAY is longer`)
	limit("algorithm: token_bucket, unit_multiplier: 3651",
		`4:91 sliding_window and token_bucket take windows of at most 10 years, but 3651 × DAY is longer`)
	limit("algorithm: token_bucket, unit_multiplier: 3650")
	limit("algorithm: token_bucket, burst: 4000",
		`4:81 a burst of 4000 takes 345600000 s to refill at 1 per DAY; at most 315360000 s are allowed`)
	limit("algorithm: token_bucket, burst: 3650")
	f("rate_limit: {unit: second, requests_per_unit: 7, unit_multiplier: 10, algorithm: token_bucket, burst: "+
		"4294967295}",
		`4:105 a burst of 4294967295 takes 6135667565 s to refill at 7 per 10 × SECOND; at most 315360000 s are allowed`)

	f("rate_limit: {unlimited: true, algorithm: token_bucket, burst: 20, calendar: UTC}",
		`4:44 unlimited: true takes no algorithm, but it is "token_bucket"`,
		`4:65 unlimited: true takes no burst, but it is 20`,
		`4:79 unlimited: true takes no calendar, but it is "UTC"`)

	limit("calendar: Europe/Berln", `4:59 calendar "Europe/Berln" is no IANA time zone, such as UTC or Europe/Berlin`)
	for _, name := range []string{"''", "Local", "+02:00", "right/UTC"} {
		limit("calendar: "+name,
			`4:59 calendar "`+strings.Trim(name, "'")+`" is no IANA time zone, such as UTC or Europe/Berlin`)
	}
	f("rate_limit: {unit: Minute, requests_per_unit: 1, calendar: UTC}",
		`4:62 calendar takes unit day, week, month or year, not "Minute"`)
	limit("calendar: UTC, unit_multiplier: 3", `4:59 calendar takes no unit_multiplier, but it is 3`)
	limit("calendar: UTC, unit_multiplier: 1", `4:59 calendar takes no unit_multiplier, but it is 1`)
	limit("calendar: UTC, algorithm: token_bucket",
		`4:59 calendar needs algorithm: fixed_window, but algorithm is token_bucket`)
	limit("calendar: UTC, algorithm: fixed_window")
	limit("shadow_mode: true",
		`4:49 key shadow_mode has no meaning in rate_limit, but in a descriptor; allowed are unit, requests_per_unit, `+
			`unit_multiplier, algorithm, burst, calendar, unlimited, name or replaces`)

	f("rate_limit: {unit: day, requests_per_unit: 1}\n  rate_limits: [{unit: day, requests_per_unit: 1}]",
		`5:3 rate_limit and rate_limits exclude each other; the first is at line 4, column 3`)
	f("rate_limits: [{unit: day, requests_per_unit: 1}]\n  rate_limit: {unit: day, requests_per_unit: 1}",
		`5:3 rate_limit and rate_limits exclude each other; the first is at line 4, column 3`)
	f("rate_limit:\n  rate_limits: [{unit: day, requests_per_unit: 1}]")
	f("rate_limit: [{unit: day, requests_per_unit: 1}]",
		`4:15 rate_limit must be a map, not a list; for several limits write rate_limits`)
	f("rate_limits: {unit: day, requests_per_unit: 1}", `4:17 rate_limits must be a list, not a map`)
	f("rate_limits: 5", `4:16 rate_limits must be a list, not a number`)
	f("rate_limits: [{unit: day, requests_per_unit: 1}, 5, null]",
		`4:52 rate_limits[1] must be a map with `+items+`, not a number`,
		`4:55 rate_limits[2] must be a map with `+items+`, not null`)
	f("rate_limits: []", `4:16 rate_limits is empty; leave it out for an entry without limit`)
	f("rate_limits:", `4:15 rate_limits: null is empty; leave the line out, or list limits`)
	f("rate_limits: ~", `4:16 rate_limits: null is empty; leave the line out, or list limits`)
	var nine []string
	for i := range 9 {
		nine = append(nine, fmt.Sprintf("{unit: day, requests_per_unit: 1, unit_multiplier: %d}", i+1))
	}
	f("rate_limits: ["+strings.Join(nine, ", ")+"]", `4:16 rate_limits has 9 items, at most 8 are allowed`)
	f("rate_limits: [" + strings.Join(nine[:8], ", ") + "]")
	f("rate_limits: [{unit: day}, {requests_per_unit: 1}, {unit: dya, requests_per_unit: 1}]",
		`4:18 rate_limits[0] needs requests_per_unit (0 blocks everything)`,
		`4:31 rate_limits[1] needs a unit (second, minute, hour, day, week, month or year)`,
		`4:61 unit "dya" is unknown; did you mean day? Allowed are second, minute, hour, day, week, month or year`)
	f("rate_limits:\n  - {unlimited: true}",
		`5:6 unlimited has no meaning in rate_limits; write rate_limit: {unlimited: true}`)
	f("rate_limits:\n  - {unit: minute, requests_per_unit: 1}\n"+
		"  - {unit: Minute, requests_per_unit: 2, unit_multiplier: 1}",
		`6:6 rate_limits[1] counts what rate_limits[0] counts (MINUTE, fixed_window); items must differ in unit, unit_multiplier, algorithm or calendar`)
	f("rate_limits:\n  - {unit: day, requests_per_unit: 1, calendar: UTC}\n  - {unit: day, requests_per_unit: 2}\n"+
		"  - {unit: day, requests_per_unit: 2, calendar: UTC}",
		`7:6 rate_limits[2] counts what rate_limits[0] counts (DAY, fixed_window, calendar UTC); items must differ in unit, unit_multiplier, algorithm or calendar`)
	f("rate_limits:\n  - {unit: day, requests_per_unit: 9, unit_multiplier: 2, algorithm: token_bucket}\n"+
		"  - {unit: day, requests_per_unit: 3, unit_multiplier: 2, algorithm: TOKEN_BUCKET, burst: 7}",
		`6:6 rate_limits[1] counts what rate_limits[0] counts (2 × DAY, token_bucket); items must differ in unit, unit_multiplier, algorithm or calendar`)
	f("rate_limits:\n  - {unit: day, requests_per_unit: 1, calendar: Europe/Berlin}\n"+
		"  - {unit: month, requests_per_unit: 1, calendar: Asia/Tokyo}",
		`6:51 rate_limits[1] has calendar "Asia/Tokyo", rate_limits[0] has "Europe/Berlin"; one list takes one calendar`)
	f("rate_limits:\n  - {unit: day, requests_per_unit: 1, replaces: [{name: m}]}\n"+
		"  - {unit: month, requests_per_unit: 1, name: m, replaces: [{name: m}]}",
		`5:57 rate_limits[0] replaces rate_limits[1], whose name is "m": that limit would never count; write the name of another entry's rule`,
		`6:68 the rule replaces itself: "m" is its own name; write that of another rule`)
	f("rate_limits: [{unit: day, requests_per_unit: 1, limit: 5, shadow_mode: 1}]",
		`4:51 unknown key "limit" in rate_limits[0]; allowed are `+items+``,
		`4:74 shadow_mode must be true or false, not a number (1)`)

	file := File{"f.yaml",
		[]byte(head + "  rate_limit: {unit: day, requests_per_unit: 5, algorithm: Sliding_Window}\n" +
			"- key: b\n  rate_limits: [{unit: day, requests_per_unit: 5}, {unit: day, requests_per_unit: 5, " +
			"algorithm: token_bucket}]\n")}
	mustLoad(t, Options{}, file)
	const why = "cannot be counted in memcached, which cannot read, decide and write in one step; use fixed_window " +
		"or a Redis store"
	refused(t, Options{Memcached: true}, []File{file},
		`f.yaml:4:60: domain "d", descriptor a: algorithm sliding_window `+why,
		`f.yaml:6:97: domain "d", descriptor b: algorithm token_bucket `+why)
}

func TestLoad_optionWarnings(t *testing.T) {
	f := func(entry string, want ...string) {
		t.Helper()
		checkWarnings(t, "domain: d\ndescriptors:\n- key: a\n  "+entry+"\n", want...)
	}
	f("rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_window}")
	f("rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding_window}",
		`f.yaml:4:46: domain "d", descriptor a: sliding_window with requests_per_unit 1 passes one request in two windows; token_bucket with burst: 1 passes one in each`)
	f("rate_limit: {unit: day, requests_per_unit: 2, algorithm: sliding_window}",
		`f.yaml:4:46: domain "d", descriptor a: sliding_window with requests_per_unit 2 passes one request a window to a caller who never pauses; token_bucket with burst: 1 passes two in each`)
	f("rate_limit: {unit: day, requests_per_unit: 0, algorithm: token_bucket, burst: 4000}",
		`f.yaml:4:81: domain "d", descriptor a: burst has no effect: requests_per_unit 0 blocks everything`)
	f("rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket, burst: 5}")
	f("rate_limits: [{unit: day, requests_per_unit: 5, shadow_mode: true}, {unit: hour, requests_per_unit: 5, "+
		"shadow_mode: on}]",
		`f.yaml:4:16: domain "d", descriptor a: no limit of this list refuses anything`)
	f("rate_limits: [{unit: day, requests_per_unit: 5, shadow_mode: true}, {unit: hour, requests_per_unit: 5}]")
	f("shadow_mode: true\n  rate_limits: [{unit: day, requests_per_unit: 5}, {unit: hour, requests_per_unit: 5}]")
	f("rate_limits: [{unit: day, requests_per_unit: 5, name: n}, {unit: hour, requests_per_unit: 5, name: n}]",
		`f.yaml:4:102: domain "d", descriptor a: the rule in f.yaml:4:57 has the name "n" too; what replaces one replaces both`)
}

// listed is a list with a limit of each kind.
const listed = `domain: shop
descriptors:
- key: tenant
  rate_limits:
  - {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20, name: "bur.st"}
  - {unit: hour, requests_per_unit: 1000}
  - {unit: hour, requests_per_unit: 1000, unit_multiplier: 6, shadow_mode: true, replaces: [{name: other}]}
  - {unit: month, requests_per_unit: 100000, calendar: Europe/Berlin}
  - {unit: minute, requests_per_unit: 100, algorithm: sliding_window, name: bur_st}
- key: other
  shadow_mode: true
  rate_limits:
  - {unit: hour, requests_per_unit: 5, shadow_mode: false, name: other}
  - {unit: day, requests_per_unit: 9}
- {key: any, detailed_metric: true, rate_limits: [{unit: hour, requests_per_unit: 5, name: x}]}
- {key: one, rate_limit: {unit: day, requests_per_unit: 7, algorithm: token_bucket}}
`

func TestRule_limits(t *testing.T) {
	registry := stats.NewRegistry(stats.Options{})
	o := Options{Settings: Settings{NearRatio: 0.8, KeyPrefix: "p:"}, Stats: registry}
	r := mustLoad(t, o, File{"shop.yaml", []byte(listed)})
	o.EscapedKeys = true
	escaped := mustLoad(t, o, File{"shop.yaml", []byte(listed)})
	f := func(descriptor string, want ...string) {
		t.Helper()
		entries := entriesOf(t, descriptor)
		var got []string
		rule := r.Domain("shop").Find(entries)
		for limit := range rule.Limits() {
			start, end := limit.Span(1700000000)
			key := string(r.AppendKey(nil, limit, "shop", entries, start))
			line := fmt.Sprintf("%s | near %d | %d s | %s | %s", limit.limitText(), limit.Near, end-1700000000, key,
				escaped.AppendKey(nil, limit, "shop", entries, start))
			if limit.Shadow {
				line += " | shadow"
			}
			got = append(got, line)
			if limit.Stats != rule.Stats || limit.At() != rule.At() || limit.LimitStats() == nil && limit.Listed() &&
				limit.Stats != nil {
				t.Errorf("%s: limit %+v", descriptor, limit)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", descriptor, d)
		}
	}
	f("(tenant,acme)",
		"10 per SECOND (token_bucket, burst 20) | near 16 | 1 s | p:shop_tenant_acme_~bs1 | p:shop|tenant=acme|bs1",
		"1000 per HOUR | near 800 | 2800 s | p:shop_tenant_acme_1699999200 | p:shop|tenant=acme|h1|1699999200",
		"1000 per 6 × HOUR | near 800 | 6400 s | p:shop_tenant_acme_1699984800~fh6 | "+
			"p:shop|tenant=acme|h6|1699984800 | shadow",
		"100000 per MONTH (calendar Europe/Berlin) | near 80000 | 1385200 s | p:shop_tenant_acme_1698793200~cM1 | "+
			"p:shop|tenant=acme|cM1|1698793200",
		"100 per MINUTE (sliding_window) | near 80 | 40 s | p:shop_tenant_acme_~rm1 | p:shop|tenant=acme|rm1")
	f("(other,x)",
		"5 per HOUR | near 4 | 2800 s | p:shop_other_x_1699999200 | p:shop|other=x|h1|1699999200",
		"9 per DAY | near 7 | 6400 s | p:shop_other_x_1699920000~fd1 | p:shop|other=x|d1|1699920000 | shadow")
	f("(one,x)", "7 per DAY (token_bucket, burst 7) | near 5 | 6400 s | p:shop_one_x_~bd1 | p:shop|one=x|bd1")

	// Each limit of a list has counters of its own, by name or by what it allows.
	tenant := r.Domain("shop").Find(entriesOf(t, "(tenant,acme)"))
	for limit := range tenant.Limits() {
		limit.LimitStats().OverLimit.Inc()
	}
	counted := entriesOf(t, "(any,v.w)")
	dynamic := r.Domain("shop").Find(counted)
	if dynamic.LimitStats() != nil {
		t.Error("a limit whose metric key holds values has fixed counters")
	}
	registry.DynamicLimit(dynamic.AppendLimitKey(nil, "shop", counted)).ShadowMode.Inc()
	var names []string
	registry.Each(func(name string, _ stats.Kind, value int64) {
		if strings.HasPrefix(name, stats.LimitPrefix) && value == 1 {
			names = append(names, name)
		}
	})
	if d := cmp.Diff([]string{
		"ratelimit.service.limit.shop.any_v.w.x.shadow_mode",
		"ratelimit.service.limit.shop.tenant.100000_per_month.over_limit",
		"ratelimit.service.limit.shop.tenant.1000_per_6_hour.over_limit",
		"ratelimit.service.limit.shop.tenant.1000_per_hour.over_limit",
		"ratelimit.service.limit.shop.tenant.bur_st.over_limit",
		"ratelimit.service.limit.shop.tenant.bur_st_2.over_limit",
	}, slices.Sorted(slices.Values(names))); d != "" {
		t.Errorf("statistics (-want +got):\n%s", d)
	}
	if one := r.Domain("shop").Find(entriesOf(t, "(one,x)")); one.Listed() || one.LimitStats() != nil ||
		one.Further != nil {
		t.Errorf("a limit that stands alone: %+v", one)
	}
	third := tenant.Further[1]
	if other := r.Domain("shop").Find(entriesOf(t, "(other,x)")); tenant.anyReplaces(other.Further[0].ID) ||
		!third.Replacing() || !third.ReplacesID(other.ID) || other.ID == 0 || tenant.Replacing() ||
		!tenant.anyReplaces(other.ID) {
		t.Error("replaces and name are not the single limit's")
	}
}

// A caller's own limit has the key of the list's first fixed window where the window is the same, never that of a
// further one.
func TestOverride_besideList(t *testing.T) {
	r := mustLoad(t, Options{}, File{"shop.yaml", []byte(listed)})
	entries := entriesOf(t, "(tenant,acme)")
	var own Rule
	r.Override(&own, rls.Override{PerUnit: 3, Unit: rls.Hour})
	first := r.Domain("shop").Find(entries).Further[0]
	if a, b := r.AppendKey(nil, &own, "shop", entries, 7200),
		r.AppendKey(nil, first, "shop", entries, 7200); string(a) != string(b) {
		t.Errorf("an own limit counts in %s, the list's first fixed window in %s", a, b)
	}
	if own.Algorithm != counter.FixedWindow || own.Burst != 0 || own.Listed() || own.Calendar() != "" {
		t.Errorf("an own limit has options: %+v", own)
	}
}

// What shows rules shows the new fields, and only where they are set.
func TestDump_limits(t *testing.T) {
	r := mustLoad(t, Options{}, File{"shop.yaml", []byte(listed)})
	var b strings.Builder
	must.Succeed(t, r.WriteText(&b))
	if d := cmp.Diff(`shop.tenant[0]: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 20
shop.tenant[1]: unit=HOUR requests_per_unit=1000, shadow_mode: false, quota_mode: false
shop.tenant[2]: unit=HOUR requests_per_unit=1000, shadow_mode: true, quota_mode: false, unit_multiplier: 6
shop.tenant[3]: unit=MONTH requests_per_unit=100000, shadow_mode: false, quota_mode: false, calendar: Europe/Berlin
shop.tenant[4]: unit=MINUTE requests_per_unit=100, shadow_mode: false, quota_mode: false, algorithm: sliding_window
shop.other[0]: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false
shop.other[1]: unit=DAY requests_per_unit=9, shadow_mode: true, quota_mode: false
shop.any[0]: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false
shop.one: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false, algorithm: token_bucket
`, b.String()); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
	var got []string
	for _, rule := range r.View()[0].Rules[2:4] {
		text, err := json.Marshal(rule)
		must.Succeed(t, err)
		got = append(got, string(text))
	}
	if d := cmp.Diff([]string{
		`{"key":"shop.tenant[2]","descriptors":[{"key":"tenant"}],"unit":"HOUR","unit_multiplier":6,"requests_per_unit":1000,"window_seconds":21600,"replaces":["other"],"shadow_mode":true,"file":"shop.yaml","line":3,"column":3}`,
		`{"key":"shop.tenant[3]","descriptors":[{"key":"tenant"}],"unit":"MONTH","unit_multiplier":1,"requests_per_unit":100000,"calendar":"Europe/Berlin","file":"shop.yaml","line":3,"column":3}`,
	}, got); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}
}

func TestExplain_limits(t *testing.T) {
	r := mustLoad(t, Options{}, File{"shop.yaml", []byte(listed + `- {key: month, rate_limit: {unit: month, requests_per_unit: 9, calendar: Europe/Berlin}}
`)})
	f := func(descriptor, want string) {
		t.Helper()
		x := r.ExplainAt("shop", entriesOf(t, descriptor), 1773532800)
		if len(x.Limits) > 1 {
			x.Limits[1].Tightest, x.Limits[1].CounterNow = true, "3 of 1000"
		}
		_, got, _ := strings.Cut(x.Text(), "\nresult")
		if d := cmp.Diff(want, "result"+got); d != "" {
			t.Errorf("%s (-want +got):\n%s", descriptor, d)
		}
	}
	f("(tenant,acme)", `result      10 per SECOND (token_bucket, burst 20) and 1000 per HOUR and 1000 per 6 × HOUR and 100000 per MONTH (calendar Europe/Berlin) and 100 per MINUTE (sliding_window)
reason      tenant (shop.yaml:3:3) decides: 10 per SECOND (token_bucket, burst 20) and 1000 per HOUR and 1000 per 6 × HOUR and 100000 per MONTH (calendar Europe/Berlin) and 100 per MINUTE (sliding_window)
limit 1     10 per SECOND, token_bucket, burst 20, `+"`bur.st`"+`
counter key shop_tenant_acme_~bs1
limit 2     1000 per HOUR (decides at present)
counter key shop_tenant_acme_1773532800
counter now: 3 of 1000
limit 3     1000 per 6 × HOUR
counter key shop_tenant_acme_1773532800~fh6
limit 4     100000 per MONTH, calendar Europe/Berlin
counter key shop_tenant_acme_1772319600~cM1
window      2026-03-01T00:00:00+01:00 to 2026-04-01T00:00:00+02:00, Europe/Berlin
limit 5     100 per MINUTE, sliding_window, `+"`bur_st`"+`
counter key shop_tenant_acme_~rm1
metric key  shop.tenant
note        limit 3: shadow_mode: over the limit is counted but answered OK
note        limit 3: replaces the rules named "other" when they match another descriptor of the same request
`)
	f("(one,x)", `result      7 per DAY
algorithm   token_bucket, burst 7
reason      one (shop.yaml:16:4) decides: 7 per DAY (token_bucket, burst 7)
counter key shop_one_x_~bd1
metric key  shop.one
`)
	f("(month,x)", `result      9 per MONTH
reason      month (shop.yaml:17:4) decides: 9 per MONTH (calendar Europe/Berlin)
counter key shop_month_x_1772319600~cM1
window      2026-03-01T00:00:00+01:00 to 2026-04-01T00:00:00+02:00, Europe/Berlin
metric key  shop.month
`)
	if got := r.Explain(
		"shop", entriesOf(t, "(tenant,1)")).Limits[2].CounterKey; got != "shop_tenant_1_<window start>~fh6" {
		t.Errorf("the key of any window is %s", got)
	}
	request := r.ExplainRequest("shop", [][]rls.Entry{entriesOf(t, "(tenant,acme)"), entriesOf(t, "(other,x)")},
		0).Text()
	_, got, _ := strings.Cut(request, "\nrequest\n")
	_, second, _ := strings.Cut(got, "descriptor 2: ")
	if want := "replaced    descriptor 2 loses limit 1: the rule of descriptor 1 replaces \"other\"\n"; !strings.HasPrefix(got, want) ||
		second != "9 per DAY\n" {
		t.Errorf("of the request: %s", got)
	}
}

func TestRules_ChangesSince_limits(t *testing.T) {
	f := func(before, after string, want ...string) {
		t.Helper()
		load := func(limits string) *Rules { return mustLoad(t, Options{}, inDomain("{key: k, "+limits+"}")) }
		if got := load(after).ChangesSince(load(before)).First; !slices.Equal(got, want) {
			t.Errorf("%s -> %s: %q, want %q", before, after, got, want)
		}
	}
	const a, b = "{unit: day, requests_per_unit: 5}", "{unit: hour, requests_per_unit: 5}"
	bucket := func(burst int) string {
		return fmt.Sprintf("rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket, burst: %d}", burst)
	}
	f("rate_limit: "+a, "rate_limit: "+a)
	f(bucket(5), "rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}")
	f(bucket(5), bucket(6), "~ d k: 5 per DAY (token_bucket, burst 5) -> 5 per DAY (token_bucket, burst 6)")
	f("rate_limit: "+a, "rate_limits: ["+a+"]", "~ d k: 5 per DAY")
	f("rate_limits: ["+a+", "+b+"]", "rate_limits: ["+b+", "+a+"]",
		"~ d k: 5 per DAY and 5 per HOUR -> 5 per HOUR and 5 per DAY")
	f("rate_limits: ["+a+", "+b+"]", "rate_limits: ["+a+"]", "~ d k: 5 per DAY and 5 per HOUR -> 5 per DAY")
	f("rate_limits: ["+a+", "+b+"]", "rate_limits: ["+a+", "+b+"]")
	f("rate_limit: {unit: day, requests_per_unit: 5, calendar: UTC}",
		"rate_limit: {unit: day, requests_per_unit: 5, calendar: Asia/Tokyo}",
		"~ d k: 5 per DAY (calendar UTC) -> 5 per DAY (calendar Asia/Tokyo)")
}

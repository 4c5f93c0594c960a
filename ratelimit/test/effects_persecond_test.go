package test

import (
	"strings"
	"testing"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// perSecondRules has a rule of the unit second whose window does not end during a test, and another.
const perSecondRules = `[{key: s, rate_limit: {requests_per_unit: 500, unit: second, unit_multiplier: 100000000}}, {key: m, @500/y}]`

// withPerSecond is the environment for a main store and one for limits per second.
func withPerSecond(main, perSecond string, more ...string) map[string]string {
	return with(on("single", main, "KVSTORE_PERSECOND", "true", "KVSTORE_PERSECOND_URL", perSecond),
		"KVSTORE_PERSECOND_", more...)
}

// each sends one value of each rule, in one request, and checks that it was counted.
func each(t testing.TB, p *process, value string) {
	t.Helper()
	if code, answer := post(t, p, "s="+value, "m="+value); code != 200 ||
		strings.Count(answer, `"limitRemaining"`) != 2 {
		t.Errorf("%d %s", code, answer)
	}
}

var _ = effect("KVSTORE_PERSECOND KVSTORE_PERSECOND_URL", func(t *testing.T) {
	main, second := testdb.Private(t, localserver.RedisOptions{}), testdb.Private(t, localserver.RedisOptions{})
	held := func(s *localserver.Server, part string) int { return stored(t, []*localserver.Server{s}, part) }

	env := withPerSecond(main.Addr(), second.Addr())
	env["KVSTORE_PERSECOND"] = "false"
	each(t, start(t, perSecondRules, env), "off")
	if a, b := held(main, "d_"), held(second, "d_"); a != 2 || b != 0 {
		t.Errorf("off: %d and %d hits, want both in the main store", a, b)
	}
	p := start(t, perSecondRules, withPerSecond(main.Addr(), second.Addr()))
	for range 3 {
		each(t, p, "on")
	}
	if a, b := held(main, "d_m_on_"), held(second, "d_s_on_"); a != 3 || b != 3 {
		t.Errorf("on: %d and %d hits, want 3 and 3", a, b)
	}
	if a, b := held(main, "d_s_on_"), held(second, "d_m_"); a+b != 0 {
		t.Errorf("%d and %d hits in the wrong store", a, b)
	}
	if n := stat(t, p, "ratelimit.redis_per_second_pool.cx_active"); n < 1 {
		t.Errorf("%d connections to the second store", n)
	}
	if _, page := get(t, p.debug+"/explain?domain=d&descriptor=s=on"); !strings.Contains(page,
		"counter now: 3 of 500") {
		t.Errorf("/explain:\n%s", page)
	}
	second.Kill()
	await.True(t, "only who needs the second store fails", func() bool {
		alone, _ := post(t, p, "m=on")
		needs, _ := post(t, p, "s=on")
		return alone == 200 && needs == 503
	})
	if n := stat(t, p, "ratelimit.redis_pool.breaker_open"); n != 0 {
		t.Error("the main store's breaker is open")
	}
})

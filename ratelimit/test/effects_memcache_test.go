package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// memcached starts n servers and returns them with the value of MCACHE_HOST_PORT.
func memcached(t testing.TB, n int) (servers []*localserver.Server, list string) {
	t.Helper()
	var addrs []string
	for range n {
		s := testdb.Memcached(t, localserver.MemcachedOptions{})
		servers, addrs = append(servers, s), append(addrs, s.Addr())
	}
	return servers, strings.Join(addrs, ",")
}

// onMemcache is the environment of a daemon that no slow machine makes fail: name, value, name, ...
func onMemcache(more ...string) map[string]string {
	return with(map[string]string{"BACKEND_TYPE": "memcache", "MCACHE_TIMEOUT": "20s", "STORE_STALL": "0"},
		"", more...)
}

// post sends /json descriptors written k=v,k=v and returns the status and the answer.
func post(t testing.TB, p *process, descriptors ...string) (int, string) {
	t.Helper()
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	body := struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
	}{Domain: "d"}
	for _, text := range descriptors {
		var d descriptor
		for pair := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, entry{key, value})
		}
		body.Descriptors = append(body.Descriptors, d)
	}
	text, err := json.Marshal(body)
	must.Succeed(t, err)
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Post("http://"+p.http+"/json", "application/json", strings.NewReader(string(text)))
	must.Succeed(t, err)
	defer resp.Body.Close()
	var answer json.RawMessage
	must.Succeed(t, json.NewDecoder(resp.Body).Decode(&answer))
	var compact bytes.Buffer // protojson puts spaces in at random
	must.Succeed(t, json.Compact(&compact, answer))
	return resp.StatusCode, compact.String()
}

// stat reads one number of /stats; -1 if it is not there.
func stat(t testing.TB, p *process, name string) int64 {
	t.Helper()
	_, body := get(t, p.debug+"/stats?format=json")
	var all map[string]int64
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		return -1
	}
	if n, ok := all[name]; ok {
		return n
	}
	return -1
}

// Two daemons with one list share their counters.
var _ = effect("MCACHE_HOST_PORT", func(t *testing.T) {
	_, list := memcached(t, 3)
	env := onMemcache("MCACHE_HOST_PORT", list)
	a, b := start(t, `[{key: k, @2/y}]`, env), start(t, `[{key: k, @2/y}]`, env)
	for i := range 5 {
		value := fmt.Sprint("v", i)
		for range 2 {
			if got := decide1(t, a.dial(t), "k", value); got.OverallCode != pb.RateLimitResponse_OK {
				t.Errorf("%s: %v", value, got)
			}
		}
	}
	for i := range 5 {
		value := fmt.Sprint("v", i)
		await.True(t, "the other daemon sees the hits of "+value, func() bool {
			_, page := get(t, b.debug+"/explain?domain=d&descriptor=k="+value)
			return strings.Contains(page, "counter now: 2 of 2")
		})
		if got := decide1(t, b.dial(t), "k", value); got.OverallCode != pb.RateLimitResponse_OVER_LIMIT {
			t.Errorf("the other daemon, %s: %v", value, got)
		}
	}
	if n := stat(t, a, "ratelimit.memcache.nodes"); n != 3 {
		t.Errorf("%d nodes", n)
	}
})

// A key that memcached does not take: never OK in silence, but what the failure mode says.
func TestMemcache_badKey(t *testing.T) {
	t.Parallel()
	_, list := memcached(t, 3)
	f := func(mode, format string, code int, part string) {
		t.Helper()
		p := start(t, `[{key: k, @1/y}]`, onMemcache("MCACHE_HOST_PORT", list, "STORE_FAILURE_MODE", mode,
			"CACHE_KEY_FORMAT", format, "CACHE_KEY_PREFIX", mode+format))
		for _, bad := range []string{"a b", strings.Repeat("x", 300)} {
			good := fmt.Sprint("good", len(bad))
			if got, answer := post(t, p, "k="+good, "k="+bad); got != code || !strings.Contains(answer, part) {
				t.Errorf("%s, %s: %d %s", mode, format, got, answer)
			}
			// The good one has been counted.
			if got, answer := post(t, p, "k="+good); got != 429 {
				t.Errorf("%s, %s: the good one: %d %s", mode, format, got, answer)
			}
		}
		_, page := get(t, p.debug+"/explain?domain=d&descriptor=k=a+b")
		if hint := "white space"; strings.Contains(page, hint) != (format == "plain") {
			t.Errorf("%s: /explain:\n%s", format, page)
		}
	}
	f("error", "plain", 400, `"INVALID_ARGUMENT","message":"rate limit descriptor 1: the counter key h`)
	f("allow", "plain", 200, `"overallCode":"OK"`)
	f("deny", "plain", 429, `{"code":"OVER_LIMIT","currentLimit"`)
	f("error", "escaped", 200, `"overallCode":"OK"`)
}

// The over-limit cache spares memcached what it would refuse.
func TestMemcache_overLimitCache(t *testing.T) {
	t.Parallel()
	_, list := memcached(t, 3)
	p := start(t, `[{key: k, @2/y}]`, onMemcache("MCACHE_HOST_PORT", list, "LOCAL_CACHE_SIZE_IN_BYTES", "1000000"))
	for i, want := range []int{200, 200, 429} {
		if code, answer := post(t, p, "k=v"); code != want {
			t.Errorf("request %d: %d %s, want %d", i+1, code, answer, want)
		}
	}
	asked := stat(t, p, "ratelimit.memcache.keys_requested")
	for range 5 {
		if code, answer := post(t, p, "k=v"); code != 429 {
			t.Errorf("%d %s", code, answer)
		}
	}
	if now := stat(t, p, "ratelimit.memcache.keys_requested"); now != asked {
		t.Errorf("%d keys asked for, want the %d of before", now, asked)
	}
}

// The stop option holds on memcached: while one descriptor is over, the others do not grow.
func TestMemcache_stop(t *testing.T) {
	t.Parallel()
	_, list := memcached(t, 3)
	p := start(t, `[{key: k, @1/y}, {key: m, @9/y}]`,
		onMemcache("MCACHE_HOST_PORT", list, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"))
	for i, want := range []int{200, 429, 429} {
		if code, answer := post(t, p, "k=v", "m=v"); code != want || !strings.Contains(answer, `"limitRemaining":8`) {
			t.Errorf("request %d: %d %s, want %d", i+1, code, answer, want)
		}
	}
	if code, answer := post(t, p, "m=v"); code != 200 || !strings.Contains(answer, `"limitRemaining":7`) {
		t.Errorf("%d %s", code, answer)
	}
}

// One of three nodes is killed: only its keys follow the failure mode.
func TestMemcache_nodeKilled(t *testing.T) {
	t.Parallel()
	servers, list := memcached(t, 3)
	p := start(t, `[{key: k, @99/y}]`,
		onMemcache("MCACHE_HOST_PORT", list, "STORE_FAILURE_MODE", "deny", "LOCAL_CACHE_SIZE_IN_BYTES", "1000000"))
	servers[1].Kill()
	var denied, counted []string
	for i := range 30 {
		key := fmt.Sprint("k=", i)
		switch code, answer := post(t, p, key); code {
		case 200:
			counted = append(counted, key)
		case 429:
			denied = append(denied, key)
		default:
			t.Fatalf("%s: %d %s", key, code, answer)
		}
	}
	if len(denied) == 0 || len(counted) < 10 {
		t.Fatalf("%d denied, %d counted of 30", len(denied), len(counted))
	}
	code, answer := post(t, p, counted[0], denied[0])
	if code != 429 || !strings.Contains(answer, `"limitRemaining":97`) {
		t.Errorf("both in one request: %d %s", code, answer)
	}
	await.True(t, "the node counts as lost", func() bool {
		post(t, p, denied[0])
		return stat(t, p, "ratelimit.memcache.nodes_lost") == 1
	})
	must.Succeed(t, servers[1].Restart(t.Context()))
	await.True(t, "the node is found again", func() bool {
		code, _ := post(t, p, denied[0])
		return code == 200
	})
}

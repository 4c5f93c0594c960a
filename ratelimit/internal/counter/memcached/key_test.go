package memcached

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMemcacheKey(t *testing.T) {
	f := func(key, want, why string) {
		t.Helper()
		got, err := storedKey([]byte(key), false)
		if got != want || why != "" && fmt.Sprint(err) != "the counter key "+why || why == "" && err != nil {
			t.Errorf("%.20q: %q %v", key, got, err)
		}
		got, err = storedKey([]byte(key), true)
		if err != nil || (why == "") != (got == key) || keyTrouble([]byte(got)) != "" {
			t.Errorf("%.20q hashed: %q %v", key, got, err)
		}
	}
	long := strings.Repeat("x", 250)
	f("d_k_v_1700000000", "d_k_v_1700000000", "")
	f("d_k_\xff\xc3\xa9_1", "d_k_\xff\xc3\xa9_1", "")
	f(long, long, "")
	f(long+"x", "", "has 251 bytes, memcached takes at most 250")
	f("", "", "is empty")
	for _, c := range []string{" ", "\t", "\r\n", "\x00", "\x7f", "\x1f"} {
		f("a"+c+"b", "", "holds white space or a control character, which memcached does not take")
	}
	a, _ := storedKey([]byte("a b"), true)
	if a != "sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c034ba24ef6fcf5da1dc" && len(a) != 71 {
		t.Errorf("%q", a)
	}
	if b, _ := storedKey([]byte("a c"), true); a == b {
		t.Error("two keys, one hash")
	}
	if CheckPrefix("") != nil || CheckPrefix("p_") != nil || CheckPrefix("p ") == nil {
		t.Error("CheckMemcachePrefix")
	}
}

func TestMemcacheExpiry(t *testing.T) {
	f := func(ends, now int64, want int32, alive bool) {
		t.Helper()
		if got, ok := expiryOf(ends, now); got != want || ok != alive {
			t.Errorf("%d at %d: %d %v, want %d %v", ends, now, got, ok, want, alive)
		}
	}
	const day, noon = 86400, 1700000000
	f(noon+1, noon, 1, true)
	f(noon, noon, 0, false)
	f(noon-5, noon, 0, false)
	f(noon+30*day, noon, 30*day, true)
	f(noon+30*day+1, noon, noon+30*day+1, true) // a date
	f(noon+365*day, noon, noon+365*day, true)
	f(noon+100*365*day, noon, math.MaxInt32, true) // 2038
	f(math.MaxInt32+100*day, math.MaxInt32-10*day, longestRelative, true)
	f(math.MaxInt32+100*day, math.MaxInt32+10*day, longestRelative, true)
}

func FuzzMemcacheTotal(f *testing.F) {
	for _, s := range []string{"0", "17", "9  ", "18446744073709551615", "18446744073709551616", "-1", "x", "", " 1",
		"1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n, err := parseTotal(value)
		if n < 0 || err != nil && (n != 0 || !errors.Is(err, counter.ErrUnavailable)) {
			t.Errorf("%q: %d %v", value, n, err)
		}
		digits := bytes.TrimRight(value, " ")
		if err == nil && (len(digits) == 0 || len(bytes.Trim(digits, "0123456789")) > 0) {
			t.Errorf("%q is read as %d", value, n)
		}
	})
}

// Long windows: memcached takes more than 30 days for a date.
func TestMemcache_longWindows(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	o := patient3([]string{server.Addr()})
	o.JitterMax = 300
	s := newTestMemcache(t, o)
	f := func(key string, window, left int64) {
		t.Helper()
		hit := func() counter.Hit {
			return counter.Hit{Key: []byte(key), N: 1, Meter: counter.Meter{Limit: 10, Window: window},
				End: now() + left}
		}
		add(t, s, now(), hit())
		settled(t, s)
		if got := add(t, s, now(), hit()); got != 2 {
			t.Errorf("%s: %d, want 2: the first is gone", key, got)
		}
		settled(t, s)
		// "me" returns the time to live in seconds, as a negative number.
		var ttl int64
		if _, err := fmt.Sscanf(metaDebug(t, server.Addr(), key), "exp=-%d", &ttl); err != nil ||
			ttl < left-60 || ttl > left+5+300+1 {
			t.Errorf("%s lives for %d s (%v), want about %d", key, ttl, err, left+5)
		}
	}
	f("second", 1, 100)
	f("month", 30*86400, 30*86400)
	f("year", 365*86400, 300*86400)
}

// metaDebug is what memcached's meta debug command says of a key, from exp= on.
func metaDebug(t *testing.T, addr, key string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must.Succeed(t, err)
	defer c.Close()
	fmt.Fprintf(c, "me %s\r\n", key)
	buf := make([]byte, 1000)
	n, err := c.Read(buf)
	must.Succeed(t, err)
	_, after, _ := strings.Cut(string(buf[:n]), " ")
	if i := strings.Index(after, "exp="); i >= 0 {
		return after[i:]
	}
	t.Fatalf("me answers %q", buf[:n])
	return ""
}

// A bad key fails alone: its request's other hits are counted.
func TestMemcache_badKey(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3(addrs))
	for _, stop := range []bool{false, true} {
		good := fmt.Sprint("good", stop)
		for round := range 3 {
			req := counter.Request{Hits: []counter.Hit{h(good, 1), h("has space", 1), h(strings.Repeat("x", 251), 1),
				h(good, 1)}, Now: now(), Stop: counter.StopWhen(stop)}
			if err := s.Add(t.Context(), &req); !errors.Is(err, counter.ErrPartial) {
				t.Fatalf("%v, want ErrPartial", err)
			}
			for i := range req.Hits {
				_, bad := errors.AsType[*counter.KeyError](req.Hits[i].Err)
				if bad != (i == 1 || i == 2) || !bad && req.Hits[i].Err != nil {
					t.Errorf("hit %d: %v", i, req.Hits[i].Err)
				}
			}
			if a, b := req.Hits[0].After, req.Hits[3].After; a != int64(2*round+1) || b != a+1 {
				t.Errorf("totals %d %d in round %d", a, b, round)
			}
		}
	}
	if err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h("a b", 1)}, Now: now()}); !errors.Is(err,
		counter.ErrPartial) {
		t.Errorf("%v", err)
	}
	if _, err := countertest.Peek(t.Context(), s, "a b"); err == nil ||
		err.Error() != "the counter key holds white space or a control character, which memcached does not take" {
		t.Errorf("Peek: %v", err)
	}
}

// A counter that is not a number fails the calls for that counter alone; a padded or huge number does not.
func TestMemcache_foreignValue(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	s := newTestMemcache(t, patient3([]string{server.Addr()}))
	peer := newPeer(t, server.Addr())
	for key, value := range map[string]string{
		"text": "secret words", "empty": "",
		"long": strings.Repeat("7", maxNumber+1), "item": strings.Repeat("x", 1000*1000),
		"padded": "10", "huge": "18446744073709551614", "spaces": "11" + strings.Repeat(" ", 100),
	} {
		if got := peer.command(key, "set %s 5 0 %d\r\n%s", key, len(value), value); got != "STORED" {
			t.Fatalf("%s: %s", key, got)
		}
	}
	if got := peer.command("padded", "decr padded 1"); got != "9" {
		t.Fatal(got)
	}
	if got := add(t, s, now(), h("padded", 1)); got != 10 {
		t.Errorf("padded: %d, want 10", got)
	}
	if got := add(t, s, now(), h("huge", 1)); got != math.MaxInt64 {
		t.Errorf("huge: %d, want 2^63-1", got)
	}
	if got := add(t, s, now(), h("spaces", 1)); got != 12 {
		t.Errorf("spaces: %d, want 12", got)
	}
	for range 2 * link.BreakerFailures {
		hits := []counter.Hit{h("good", 1), h("text", 1), h("empty", 1), h("long", 1), h("item", 1)}
		req := counter.Request{Hits: hits, Now: now()}
		err := s.Add(t.Context(), &req)
		if !errors.Is(err, counter.ErrPartial) || req.Hits[0].Err != nil {
			t.Fatalf("%v, %v; want the good key's hit counted alone", err, req.Hits[0].Err)
		}
		for _, hit := range req.Hits[1:] {
			if !errors.Is(hit.Err, counter.ErrUnavailable) {
				t.Fatalf("%s: %v, want ErrUnavailable", hit.Key, hit.Err)
			}
		}
	}
	if got := add(t, s, now(), h("good", 1)); got != 2*link.BreakerFailures+1 {
		t.Errorf("good: %d", got)
	}
	if _, lost := s.Nodes(); lost != 0 {
		t.Error("the breaker has opened: the node is sound")
	}
}

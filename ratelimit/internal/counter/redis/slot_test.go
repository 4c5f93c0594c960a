package redis

import (
	"fmt"
	"net"
	"testing"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/shared/testdb"
)

func TestSlotOf(t *testing.T) {
	f := func(key string, want uint16) {
		t.Helper()
		if got := slotOf([]byte(key)); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
	f("123456789", 0x31c3) // the specification's check value
	f("foo", 12182)
	f("{foo}bar", 12182)
	f("bar{foo}{zap}", 12182)
	f("", 0)
	f("foo{}{bar}", 8363) // an empty tag is none
	f("foo{{bar}}zap", slotOf([]byte("{bar")))
	f("}foo{", slotOf([]byte("}foo{")))
}

// The server's own opinion, on keys of any kind.
func TestSlotOf_server(t *testing.T) {
	kv := testdb.Cluster(t)
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{kv.Nodes[0].Addr()}, DisableCache: true,
		ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys := []string{"", "{", "}", "{}", "{}x", "a{b", "a}b{c}d", "\x00{\xff}\r\n", "{{}}", "a{b}{c}"}
	for i := range 50 {
		keys = append(keys, fmt.Sprintf("bench_user_%d_{path_%d}_1700000000", i, i/3))
	}
	for _, key := range keys {
		want, err := c.Do(t.Context(), c.B().ClusterKeyslot().Key(key).Build()).AsInt64()
		if err != nil || int64(slotOf([]byte(key))) != want {
			t.Errorf("slot of %q is %d, the server says %d (%v)", key, slotOf([]byte(key)), want, err)
		}
	}
}

func TestAbsolute(t *testing.T) {
	f := func(to, from, want string, ok bool) {
		t.Helper()
		if got, is := absolute(to, from); got != want || is != ok {
			t.Errorf("%q from %q: %q %v, want %q %v", to, from, got, is, want, ok)
		}
	}
	f("10.0.0.1:7000", "h:1", "10.0.0.1:7000", true)
	f("node-3.example:7000", "h:1", "node-3.example:7000", true)
	f("fe80::1:7000", "h:1", "[fe80::1]:7000", true) // Redis writes no brackets
	f("[fe80::1]:7000", "h:1", "[fe80::1]:7000", true)
	f(":7000", "10.0.0.9:1", "10.0.0.9:7000", true) // the queried host
	f("?:7000", "[::1]:1", "[::1]:7000", true)
	for _, wrong := range []string{"", ":", "h", "h:", "h:x", "h:0", "h:99999"} {
		f(wrong, "h:1", "", false)
	}
}

func TestSwitchedTo(t *testing.T) {
	f := func(message, want string) {
		t.Helper()
		if got, ok := switchedTo(message, "gate"); got.Addr != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", message, got.Addr, ok, want)
		}
	}
	f("gate 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.2:6380")
	f("gate ::1 6379 ::2 6380", "[::2]:6380")
	f("other 10.0.0.1 6379 10.0.0.2 6380", "")
	f("gate 10.0.0.1 6379 10.0.0.2", "")
	f("gate 10.0.0.1 6379 10.0.0.2 x", "")
	f("", "")
}

// What servers say about themselves comes from outside: whatever it is, an address that is taken can be dialled.
func FuzzRefusal(f *testing.F) {
	for _, seed := range []string{
		"MOVED 3999 127.0.0.1:6381", "ASK 3999 :6381", "MOVED", "ASK 1", "MOVED 1 ", "MOVED 1 ::1:5", "READONLY",
		"TRYAGAIN x",
		"CROSSSLOT", "ERR Error compiling script (new function)",
		"ERR Script attempted to access a non local key in a cluster node", "LOADING", "gate a 1 b 2", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := &redisLink{role: clusterServer}
		for _, o := range []*op{{}, {kind: opStop, stop: &stopOp{hits: make([]callHit, 2)}},
			{kind: opStop, stop: &stopOp{hits: make([]callHit, 1)}}} {
			b := new(batch)
			l.refusal(b, o, text)
			if o.notExecuted == nil {
				continue
			}
			if o.notExecuted.reason <= retryAsk {
				if addr, ok := absolute(o.notExecuted.to, "h:1"); ok {
					if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || !link.IsPort(port) {
						t.Errorf("%q: %q cannot be dialled: %v", text, addr, err)
					}
				}
			} else if o.notExecuted.to != "" {
				t.Errorf("%q: %d names %q", text, o.notExecuted.reason, o.notExecuted.to)
			}
			if (b.refusal != "") != (o.notExecuted.reason == retryLater) {
				t.Errorf("%q: refusal %q, %d", text, b.refusal, o.notExecuted.reason)
			}
		}
		if to, ok := switchedTo(text, "gate"); ok {
			if host, port, err := net.SplitHostPort(to.Addr); err != nil || host == "" || !link.IsPort(port) {
				t.Errorf("%q: %q cannot be dialled: %v", text, to.Addr, err)
			}
		}
	})
}

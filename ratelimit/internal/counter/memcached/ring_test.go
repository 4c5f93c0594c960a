package memcached

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/dnstest"
	"gatehouse/shared/await"
)

// sortedNodes is the list that SRV gives for these addresses.
func sortedNodes(addrs []string) (nodes []string) {
	for _, a := range addrs {
		nodes = append(nodes, strings.Replace(a, "127.0.0.1", "localhost", 1))
	}
	slices.Sort(nodes)
	return nodes
}

func (s *Store) listed() (addrs []string) {
	for _, n := range s.ring.Load().nodes {
		addrs = append(addrs, n.addr.Addr)
	}
	return addrs
}

func TestMemcache_SRV(t *testing.T) {
	servers, addrs := threeNodes(t)
	dns := dnstest.Start(t)
	o := Options{
		Settings: Settings{SRV: "_memcache._tcp.nodes.test.", Refresh: 10 * time.Millisecond, Timeout: patience},
		Resolver: dnstest.Resolver(dns.Addr), Stall: -1,
	}
	dns.Say(dnsmessage.RCodeServerFailure)
	if s, err := New(t.Context(), o); err == nil {
		s.Close()
		t.Fatal("it starts without nodes")
	}
	slices.Sort(addrs)
	slices.Reverse(addrs) // the order of the answer means nothing
	dns.Say(dnsmessage.RCodeSuccess, addrs[:2]...)
	s := newTestMemcache(t, o)
	two, three := sortedNodes(addrs[:2]), sortedNodes(addrs)
	lists := func(want []string) {
		t.Helper()
		await.True(t, fmt.Sprint("the list ", want), func() bool { return slices.Equal(s.listed(), want) })
	}
	lists(two)
	for i := range 20 {
		add(t, s, now(), h(fmt.Sprint("k", i), 1))
	}
	settled(t, s)
	failures := func() {
		t.Helper()
		before := s.Stats().ResolveFailures.Load()
		await.True(t, "a failed look-up", func() bool { return s.Stats().ResolveFailures.Load() > before+1 })
		if d := cmp.Diff(two, s.listed()); d != "" {
			t.Errorf("the list after a failure: %s", d)
		}
		if got := add(t, s, now(), h("k0", 0)); got != 1 {
			t.Errorf("k0 stands at %d", got)
		}
	}
	dns.Say(dnsmessage.RCodeServerFailure)
	failures()
	dns.Say(dnsmessage.RCodeNameError)
	failures()
	dns.Say(dnsmessage.RCodeSuccess) // no node
	failures()

	dns.Say(dnsmessage.RCodeSuccess, addrs...)
	lists(three)
	for i := range 60 {
		add(t, s, now(), h(fmt.Sprint("n", i), 1))
	}
	settled(t, s)
	// A node that leaves is let go of once there is nothing to write to it.
	dns.Say(dnsmessage.RCodeSuccess, addrs[:2]...)
	lists(two)
	await.True(t, "the third node to be let go of", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.nodes) == 2
	})
	for _, server := range servers {
		if server.Addr() == addrs[2] {
			server.Kill()
		}
	}
	for i := range 60 {
		add(t, s, now(), h(fmt.Sprint("m", i), 1)) // none is on it
	}
}

// Without a refresh the list of the start stays.
func TestMemcache_SRVonce(t *testing.T) {
	_, addrs := threeNodes(t)
	dns := dnstest.Start(t)
	dns.Say(dnsmessage.RCodeSuccess, addrs...)
	s := newTestMemcache(t, Options{Settings: Settings{SRV: "_memcache._tcp.nodes.test.", Timeout: patience},
		Resolver: dnstest.Resolver(dns.Addr), Stall: -1})
	asked := dns.Asked()
	add(t, s, now(), h("a", 1))
	settled(t, s)
	if n := dns.Asked(); n != asked {
		t.Errorf("asked %d times, want %d", n, asked)
	}
}

// The order is the replaced service's, which sorts names that end in a dot.
func TestNodeList(t *testing.T) {
	got := nodeList([]*net.SRV{
		{Target: "b.test.", Port: 2, Priority: 1}, {Target: "a.test.", Port: 11211, Priority: 9},
		{Target: "a.test.", Port: 2}, {Target: "a.", Port: 5}, {Target: "::1.", Port: 1},
	})
	if d := cmp.Diff([]string{"[::1]:1", "a:5", "a.test:11211", "a.test:2", "b.test:2"}, got); d != "" {
		t.Error(d)
	}
}

func TestParseSRV(t *testing.T) {
	f := func(s string, ok bool) {
		t.Helper()
		if err := CheckSRV(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
	f("_memcache._tcp.example.com", true)
	f("_m._udp.x", true)
	f("memcache._tcp.example.com", false)
	f("_memcache.tcp.example.com", false)
	f("_._tcp.example.com", false)
	f("_memcache._tcp.", false)
	f("_memcache._tcp", false)
	f("", false)

	g := func(s string, ok bool) {
		t.Helper()
		if err := CheckNode(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
	g("host:11211", true)
	g("[::1]:11211", true)
	g("/run/memcached.sock", true)
	g("host", false)
	g("host:0", false)
	g(":11211", false)
	g("host:http", false)
	g("secret@host:11211", false)
	g("redis://secret@host/0", false)
}

// A node that is listed twice has one client and twice the keys.
func TestMemcache_listedTwice(t *testing.T) {
	_, addrs := threeNodes(t)
	s := newTestMemcache(t, patient3([]string{addrs[0], addrs[1], addrs[0]}))
	if all, _ := s.Nodes(); all != 3 || len(s.nodes) != 2 {
		t.Errorf("a list of %d with %d nodes, want 3 and 2", all, len(s.nodes))
	}
	first := 0
	for i := range 300 {
		if s.ring.Load().pick(fmt.Sprint("k", i)) == s.nodes[0] {
			first++
		}
	}
	if first < 160 || first > 240 {
		t.Errorf("%d of 300 keys are on the node listed twice", first)
	}
	var hits []counter.Hit
	for i := range 50 {
		hits = append(hits, h(fmt.Sprint("k", i), 1))
	}
	if err := s.Add(t.Context(), &counter.Request{Hits: hits, Now: now()}); err != nil {
		t.Error(err)
	}
}
